"""The tools' commands: parse, call, print. As in `mirror_core.cli`, heavy imports are late."""

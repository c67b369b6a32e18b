"""The commands that this package adds to `mirrorbook`. Read whenever commands are listed: imports no tool."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.cli.lazy_group import LazyCommand

COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "demo": LazyCommand(
            "mirrorbook_tools.cli.demo",
            "demo_command",
            "See it work: two clusters, a failover under load, every record counted. Exit code 0: exact; 1: not.",
        ),
        "sandbox": LazyCommand(
            "mirrorbook_tools.cli.sandbox", "sandbox_app", "Two small Kafka clusters of real brokers on this machine."
        ),
        "import": LazyCommand("mirrorbook_tools.cli.mirrormaker", "import_app", "Move over from MirrorMaker 2."),
        "log": LazyCommand("mirrorbook_tools.cli.log", "log_app", "Logs of a broker that is stopped."),
    }
)

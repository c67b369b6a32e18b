"""The command line: parse, call, print.

A command parses its options, calls one function of a lower room, and prints the result for people, or as one JSON
document with `--json`. It decides nothing itself.

- **Commands are imported when called** (`lazy_group.COMMANDS`): clients, Arrow and Spark take most of a second. Keep
  heavy imports late.
- **Errors become exit codes in one place** (`main.main`): each `MirrorError` class has its own. A defect is printed by
  type and line, never by its text, which may hold secrets.
- **A change asks first**: print what would be done, refuse with all reasons, then ask. Without a terminal `--yes` is
  required (`command_options.require_confirmation`), so no script waits for ever.
- **Output never ends a run** that applications wait for (`output.print_line_or_continue`).
- Help texts are the docstrings of command functions. JSON Schemas are made from the document classes.

Start at `main`, then `failover`: `run_commands` has what `failover` and `failback` share.
"""

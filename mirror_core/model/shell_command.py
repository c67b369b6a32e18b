"""Text from others, made safe to show; quantities, addresses and shell commands as text."""

from __future__ import annotations

import shlex


def format_shell_command(program: str, *arguments: str) -> str:
    """The only place that builds command lines to paste, so that no name in them is executed."""
    return shlex.join([program, *arguments])


def format_option(name: str, value: str) -> tuple[str, ...]:
    """Joins with `=` when the value begins with a dash."""
    return (f"{name}={value}",) if value.startswith("-") else (name, value)

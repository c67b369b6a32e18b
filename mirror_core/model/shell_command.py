"""Command lines that people paste into a shell: every one of them is made here, so that no name in them is executed."""

from __future__ import annotations

import shlex


def shell_command(program: str, *arguments: str) -> str:
    """The command line that runs `program` with exactly these arguments, whatever they contain."""
    return shlex.join([program, *arguments])


def option(name: str, value: str) -> tuple[str, ...]:
    """An option and its value, joined by `=` where the tool would take the value for another option."""
    return (f"{name}={value}",) if value.startswith("-") else (name, value)

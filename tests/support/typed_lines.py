"""Typed lines, shared by tests."""

from __future__ import annotations

import shlex
from itertools import takewhile
from typing import Final

from typer.core import TyperGroup
from typer.main import get_command

from mirror_core.cli.lazy_group import list_lazy_commands, load_command
from mirror_core.cli.main import app

PLAIN: Final = {"RATE": "50MB/s", "[HOST:]PORT": "9465", "{{ $labels.mirror }}": "NAME"}
"""What a page writes for a value that the command line reads, and one such value."""

_NOT_OURS: Final = ("|", ">", "&&")
"""Words at which another program's part of a line begins."""


def parse(line: str) -> None:
    """Read a line as the command line does; an error of its own when it cannot be read."""
    for said, meant in PLAIN.items():
        line = line.replace(said, meant)
    words = shlex.split(line, comments=True)
    words = list(takewhile(lambda word: word not in _NOT_OURS, words))
    at = next((n for n, word in enumerate(words) if word in list_lazy_commands()), None)
    if at is None:
        own = {option for parameter in get_command(app).params for option in parameter.opts}
        assert set(words) <= own, f"no command {line}"
        return
    get_command(app).make_context("mirrorbook", words[: at + 1])
    command, rest = load_command(words[at], list_lazy_commands()[words[at]]), words[at + 1 :]
    if isinstance(command, TyperGroup):
        assert rest, f"{line} is a group of commands"
        assert rest[0] in command.commands, f"no command {line}"
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(command.name, rest)

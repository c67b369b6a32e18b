"""Each command has --json, and is run by a test on real brokers, so no page tells of one that never ran."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from typer.core import TyperGroup

from mirror_core.cli.json_schema import list_json_commands
from mirror_core.cli.lazy_group import list_lazy_commands, load_command
from tests.support.doc_pages import ROOT

BROKERS = ("cluster", "dag", "drill", "spark")


def paths() -> Iterator[tuple[str, ...]]:
    for name, place in list_lazy_commands().items():
        command = load_command(name, place)
        if isinstance(command, TyperGroup):
            yield from ((name, one) for one in command.commands)
        else:
            yield (name,)


def typed(file: Path) -> Iterator[tuple[str, ...]]:
    """Arguments of each call and items of each list of a file, by their text; "" for what is no constant text."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(args=items) | ast.List(elts=items) | ast.Tuple(elts=items):
                yield tuple(i.value if isinstance(i, ast.Constant) and isinstance(i.value, str) else "" for i in items)


def runs(line: tuple[str, ...], command: tuple[str, ...]) -> bool:
    if command[0] == "sandbox" and line[:1] == ("",):  # its tests say `said(own, "slow", …)`
        command = ("", *command[1:])
    return any(line[n : n + len(command)] == command for n in range(len(line)))


def test_each_command_has_json_but_for_the_one_that_prints_nothing_else() -> None:
    assert {" ".join(command) for command in paths()} - dict(list_json_commands()).keys() == {"json-schema"}


def test_each_command_is_run_by_a_test_on_brokers() -> None:
    lines = {line for room in BROKERS for file in (ROOT / "tests" / room).rglob("*.py") for line in typed(file)}
    assert [command for command in paths() if not any(runs(line, command) for line in lines)] == []

"""Each `mirrorbook` line that pages, DAGs and alerts show is read by the command line's own parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer._click.exceptions import UsageError  # Typer has a Click of its own
from typer.core import TyperGroup
from typer.main import get_command

from mirror_core.cli.lazy_group import COMMANDS, list_lazy_commands, load_command
from mirror_core.cli.main import app
from tests.support.doc_pages import ROOT, commands, read_commands_pages
from tests.support.typed_lines import parse

PAGES: Final = [
    *sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]),
    ROOT / "benchmarks" / "README.md",
    ROOT / "monitoring" / "alerts.yaml",
    *sorted((ROOT / "dags").glob("*.py")),
]

_FENCED: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TYPED: Final = re.compile(r"^(?:\$ | {4})(?:\w+=\S+ )*mirrorbook (.+)$|submit\.py (.+)$", re.MULTILINE)
_QUOTED: Final = re.compile(r"`(?:\$ )?mirrorbook\s([^`]+)`")
_LEFT_OUT: Final = re.compile(r"^Missing (?:argument|option|parameter)|requires an argument")
_OPTION: Final = re.compile(r"--[a-z][a-z-]+")
_HEADING: Final = re.compile(r"^### (.+)\n\n(`.*)$", re.MULTILINE)


def typed(text: str) -> Iterator[str]:
    """Lines that a reader may copy to a terminal: they have all that a command needs."""
    for line in _TYPED.findall(text.replace("\\\n", " ")):
        yield next(filter(None, line))


def quoted(text: str) -> Iterator[str]:
    """Commands in a sentence: what is clear from it may be left out."""
    for words in _QUOTED.findall(_FENCED.sub("", text)):
        yield " ".join(words.split())


def is_group(line: str) -> bool:
    return line in list_lazy_commands() and isinstance(load_command(line, list_lazy_commands()[line]), TyperGroup)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_line_that_is_shown_can_be_typed(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in typed(text):
        parse(line)
    for line in quoted(text):
        if is_group(line) or line.startswith("COMMAND "):  # a group of them, or any
            continue
        try:
            parse(line.removesuffix("…").strip())
        except UsageError as error:
            if not _LEFT_OUT.search(error.format_message()):
                raise


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_ends_with_an_example_that_can_be_typed(name: str) -> None:
    program, command, *_ = COMMANDS[name].example.split()
    assert (program, command) == ("mirrorbook", name)
    parse(COMMANDS[name].example.removeprefix("mirrorbook "))
    assert load_command(name, COMMANDS[name]).epilog == f"Example: {COMMANDS[name].example}"


@pytest.mark.parametrize(
    "line",
    [
        "mirror describe",
        "mirror look NAME",
        "mirrors list",
        "failover run NAME --mode sudden",
        "failover run NAME --plan",
        "failover run NAME other",
        "replicate orders --metrics",
        "--log-level loud replicate orders",
        "mirror throttle NAME",
    ],
)
def test_a_line_that_cannot_be_typed_is_found(line: str) -> None:
    with pytest.raises((UsageError, AssertionError)):
        parse(line)


def test_each_command_has_one_heading_on_the_commands_page_and_its_own_options_below() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    known = dict(commands(group))
    shown = [(name, synopsis) for name, synopsis in _HEADING.findall(read_commands_pages()) if name in known]
    assert sorted(name for name, _ in shown) == sorted(known)
    for name, synopsis in shown:
        assert re.match(rf"`{name}[ `]", synopsis), name
        assert set(_OPTION.findall(synopsis)) <= known[name], name

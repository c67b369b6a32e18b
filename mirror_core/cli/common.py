"""What commands share: options, the configuration, a question before something is done, tables and JSON."""

from __future__ import annotations

import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from mirror_core.cli import completing
from mirror_core.kafka.config import Config, find_config, load_config
from mirror_core.model.documents import Document, as_text
from mirror_core.model.errors import Indeterminate, Refused
from mirror_core.model.text import visible, visible_lines
from mirror_core.state.link import Link, find
from mirror_core.state.records import State

ConfigOption = Annotated[Path | None, typer.Option("--config", help="Path of mirrorbook.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
NameArgument = Annotated[str, typer.Argument(help="The mirror.", autocompletion=completing.mirrors)]


def configuration(path: Path | None) -> Config:
    return load_config(find_config(path))


def mirror(path: Path | None, name: str) -> tuple[Link, State]:
    return find(configuration(path), name)


def check_runner(runner: str) -> None:
    """Where tasks of a copy or a comparison may run."""
    if runner not in ("spark", "local"):
        raise typer.BadParameter("must be spark or local", param_hint="--runner")


def agree(question: str, yes: bool) -> None:
    """Go on only when a person agreed: by --yes, or on a terminal. Refused otherwise: no script waits for ever."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("not done", ["confirmation required: pass --yes, or run it in a terminal"])
    with suppress(OSError, termios.error):  # what was typed before the question was read is no answer to it
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    if not typer.confirm(question, default=False):
        raise Refused("not done", ["cancelled"])


def print_json(document: Document) -> None:
    typer.echo(as_text(document))


_NAME_CELLS: Final = 100
"""A name longer than this may wrap: else nothing would stand beside it."""
_FILE_CELLS: Final = 160
"""The width of a table in a file or a pipe, and the most that one takes where a terminal is too narrow for it."""


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console  # late: commands that print no table need not wait for it
    from rich.table import Table
    from rich.text import Text

    # `Text` is taken as it is: in a plain string `[/b]` would be markup.
    table = Table(title=Text(visible(title)), title_justify="left")
    cells = [[Text("" if cell is None else visible_lines(str(cell))) for cell in row] for row in rows]
    # What a row is named by is copied from here into the next command: the other columns wrap first.
    whole = max((row[0].cell_len for row in cells), default=0)
    for number, column in enumerate(columns):
        width = min(max(whole, len(column)), _NAME_CELLS) if number == 0 else None
        table.add_column(Text(column), width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else _FILE_CELLS)
    # What does not fit would be cut off at the right, and columns with it: a terminal breaks longer lines.
    needed = console.measure(table, options=console.options.update(width=_FILE_CELLS)).minimum
    console.width = max(console.width, min(needed, _FILE_CELLS))
    console.print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    for key, value in facts.items():
        typer.echo(f"{visible(key)}: {'unknown' if value is None else visible(str(value))}")


def refuse_unknown(what: str, reasons: Sequence[str]) -> None:
    """Indeterminate when a list is not all there is; what is known has been shown."""
    if reasons:
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        raise Indeterminate(f"there may be more {what} than were listed:{listed}")

"""What commands share: options, the configuration, a question before something is done, tables and JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from mirror_core.kafka.config import Config, find_config, load_config
from mirror_core.model.errors import Refused
from mirror_core.state.link import Link, find
from mirror_core.state.records import State

ConfigOption = Annotated[Path | None, typer.Option("--config", help="Path of mirrorbook.yaml.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, do nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
NameArgument = Annotated[str, typer.Argument(help="The mirror.")]


def configuration(path: Path | None) -> Config:
    return load_config(find_config(path))


def mirror(path: Path | None, name: str) -> tuple[Link, State]:
    return find(configuration(path), name)


def agree(question: str, yes: bool) -> None:
    """Go on only when a person agreed: by --yes, or on a terminal. Refused otherwise: no script waits for ever."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("not done", ["nobody is there to ask: give --yes, or run it on a terminal"])
    if not typer.confirm(question, default=False):
        raise Refused("not done", ["you said no"])


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def print_facts(facts: Mapping[str, object]) -> None:
    for key, value in facts.items():
        typer.echo(f"{key}: {'unknown' if value is None else value}")

"""`mirrorbook json-schema`: prints the schemas of commands with --json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mirror_core.cli.lazy_group import list_lazy_commands, load_command
from mirror_core.cli.output import print_document
from mirror_core.model.errors import BadRequest
from mirror_core.model.json_documents import format_json, get_printed_documents
from mirror_core.model.json_schemas import build_schema


def json_schema_command(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="Such as: cluster check. Default: all of them, by their names."),
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with --json."""
    if not command:
        print_document(
            format_json({name: make_schema(name, json_command) for name, json_command in list_json_commands()})
        )
        return
    wanted_command = " ".join(command)
    candidates = dict(list_json_commands(command[0]) if command[0] in list_lazy_commands() else list_json_commands())
    if wanted_command not in candidates:
        known_commands = ", ".join(candidates) or "none of this name; `mirrorbook json-schema` prints all"
        raise BadRequest(f"json-schema: no command {wanted_command!r} has --json; these have: {known_commands}")
    print_document(format_json(make_schema(wanted_command, candidates[wanted_command])))


def make_schema(name: str, command: Any) -> dict[str, Any]:
    return build_schema(name, get_printed_documents(command.callback))


def list_json_commands(*groups: str) -> Iterator[tuple[str, Any]]:
    """By name (`failover plan`), of all or these groups."""
    commands = list_lazy_commands()
    for name in groups or commands:
        yield from list_in_group(name, load_command(name, commands[name]))


def list_in_group(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for subcommand_name, subcommand in command.commands.items():
            yield from list_in_group(f"{name} {subcommand_name}", subcommand)
    elif any("--json" in parameter.opts for parameter in command.params):
        yield name, command

"""`mirrorbook json-schema`: prints the schemas of commands with --json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mirror_core.cli.lazy import COMMANDS, load
from mirror_core.cli.telling import tell
from mirror_core.model.documents import as_text, printed_by
from mirror_core.model.errors import BadRequest
from mirror_core.model.schemas import schema_of


def json_schema_command(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="Such as: cluster check. Default: all of them, by their names."),
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with --json."""
    if not command:
        tell(as_text({name: schema(name, one) for name, one in with_json()}))
        return
    wanted = " ".join(command)
    near = dict(with_json(command[0]) if command[0] in COMMANDS else with_json())
    if wanted not in near:
        known = ", ".join(near) or "none of this name; `mirrorbook json-schema` prints all"
        raise BadRequest(f"json-schema: no command {wanted!r} has --json; these have: {known}")
    tell(as_text(schema(wanted, near[wanted])))


def schema(name: str, command: Any) -> dict[str, Any]:
    return schema_of(name, printed_by(command.callback))


def with_json(*groups: str) -> Iterator[tuple[str, Any]]:
    """By name (`failover plan`), of all or these groups."""
    for name in groups or COMMANDS:
        yield from in_group(name, load(name, COMMANDS[name]))


def in_group(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for below, one in command.commands.items():
            yield from in_group(f"{name} {below}", one)
    elif any("--json" in parameter.opts for parameter in command.params):
        yield name, command

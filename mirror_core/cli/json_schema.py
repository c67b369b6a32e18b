"""`mirrorbook json-schema`. A key is required unless its type allows UNSET. Unknown keys are valid."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from msgspec import NODEFAULT, Struct
from msgspec import inspect as types
from msgspec.json import schema_components
from typer.core import TyperGroup

from mirror_core.cli.lazy_group import list_lazy_commands, load_command
from mirror_core.cli.output import print_document
from mirror_core.model.errors import BadRequest
from mirror_core.model.json_documents import JsonDocument, format_json, get_printed_documents


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
    commands = list_lazy_commands()
    for name in groups or commands:
        yield from list_in_group(name, load_command(name, commands[name]))


def list_in_group(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for subcommand_name, subcommand in command.commands.items():
            yield from list_in_group(f"{name} {subcommand_name}", subcommand)
    elif any("--json" in parameter.opts for parameter in command.params):
        yield name, command


JSON_SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

NamedType = types.StructType | types.DataclassType | types.EnumType


def build_schema(command: str, documents: tuple[type[JsonDocument], ...]) -> dict[str, Any]:
    schemas, definitions = schema_components(documents)
    for named_type in _find_named_types(types.multi_type_info(documents), set()):
        definition = definitions[named_type.cls.__name__]
        if isinstance(named_type, types.EnumType):
            _describe_values(definition, named_type.cls)
        else:
            _describe_keys(definition, named_type)
    return {
        "$schema": JSON_SCHEMA_DIALECT,
        "$id": f"urn:mirrorbook:json:{command.replace(' ', '-')}",
        "title": f"mirrorbook {command} --json",
        **(schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}),
        "$defs": definitions,
    }


def _find_named_types(node: object, visited: set[type]) -> Iterator[NamedType]:
    if isinstance(node, tuple):
        for item in node:
            yield from _find_named_types(item, visited)
    elif isinstance(node, types.Type | types.Field):
        if isinstance(node, NamedType):
            if node.cls in visited:
                return
            visited.add(node.cls)
            yield node
        yield from _find_named_types(tuple(getattr(node, name) for name in node.__struct_fields__), visited)


def _describe_keys(definition: dict[str, Any], named_type: types.StructType | types.DataclassType) -> None:
    docstrings = _read_field_docstrings(named_type.cls)
    if "description" in definition:
        definition["description"] = _replace_none(definition["description"])
    for field in named_type.fields:
        key = definition["properties"][field.encode_name]
        key.pop("default", None)  # keys are never left out
        if field.name in docstrings:
            key["description"] = docstrings[field.name]
    definition["required"] = [field.encode_name for field in named_type.fields if _is_always_written(field)]


def _is_always_written(field: types.Field) -> bool:
    return field.required or (field.default, field.default_factory) != (NODEFAULT, NODEFAULT)


def _describe_values(definition: dict[str, Any], enum_class: type[Enum]) -> None:
    docstrings = _read_field_docstrings(enum_class)
    lines = [definition["description"]] if "description" in definition else []
    lines += [f"{member.value}: {docstrings[member.name]}" for member in enum_class if member.name in docstrings]
    if lines:
        definition["description"] = "\n".join(lines)


def _read_field_docstrings(described: type) -> dict[str, str]:
    """Python does not keep docstrings of fields and enum members. Base classes included."""
    docstrings = dict[str, str]()
    for base in reversed(described.__mro__):
        if base is described or (issubclass(base, Struct) and base is not Struct):
            docstrings |= _read_module_docstrings(base.__module__)[base.__name__]
    return docstrings


@cache
def _read_module_docstrings(name: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {
        definition.name: dict(_read_class_docstrings(definition))
        for definition in tree.body
        if isinstance(definition, ast.ClassDef)
    }


def _read_class_docstrings(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(definition.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                yield name, _replace_none(" ".join(docstring.split()))


def _replace_none(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text)

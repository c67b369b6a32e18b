"""JSON Schemas made from document types and docstrings.

A key is required unless its type allows UNSET. Unknown keys are valid.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Any, Final

from msgspec import NODEFAULT, Struct
from msgspec import inspect as types
from msgspec.json import schema_components

from mirror_core.model.json_documents import JsonDocument

JSON_SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

NamedType = types.StructType | types.DataclassType | types.EnumType


def build_schema(command: str, documents: tuple[type[JsonDocument], ...]) -> dict[str, Any]:
    """Schema of a command's --json output."""
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

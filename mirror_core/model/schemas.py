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

from mirror_core.model.documents import Document

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Named = types.StructType | types.DataclassType | types.EnumType


def schema_of(command: str, documents: tuple[type[Document], ...]) -> dict[str, Any]:
    """Schema of a command's --json output."""
    found, parts = schema_components(documents)
    for known in _named(types.multi_type_info(documents), set()):
        part = parts[known.cls.__name__]
        if isinstance(known, types.EnumType):
            _describe_values(part, known.cls)
        else:
            _describe_keys(part, known)
    return {
        "$schema": DIALECT,
        "$id": f"urn:mirrorbook:json:{command.replace(' ', '-')}",
        "title": f"mirrorbook {command} --json",
        **(found[0] if len(found) == 1 else {"anyOf": list(found)}),
        "$defs": parts,
    }


def _named(known: object, seen: set[type]) -> Iterator[Named]:
    if isinstance(known, tuple):
        for one in known:
            yield from _named(one, seen)
    elif isinstance(known, types.Type | types.Field):
        if isinstance(known, Named):
            if known.cls in seen:
                return
            seen.add(known.cls)
            yield known
        yield from _named(tuple(getattr(known, name) for name in known.__struct_fields__), seen)


def _describe_keys(part: dict[str, Any], known: types.StructType | types.DataclassType) -> None:
    told = _docstrings(known.cls)
    if "description" in part:
        part["description"] = _in_json(part["description"])
    for field in known.fields:
        key = part["properties"][field.encode_name]
        key.pop("default", None)  # keys are never left out
        if field.name in told:
            key["description"] = told[field.name]
    part["required"] = [field.encode_name for field in known.fields if _is_always_written(field)]


def _is_always_written(field: types.Field) -> bool:
    return field.required or (field.default, field.default_factory) != (NODEFAULT, NODEFAULT)


def _describe_values(part: dict[str, Any], known: type[Enum]) -> None:
    told = _docstrings(known)
    lines = [part["description"]] if "description" in part else []
    lines += [f"{one.value}: {told[one.name]}" for one in known if one.name in told]
    if lines:
        part["description"] = "\n".join(lines)


def _docstrings(known: type) -> dict[str, str]:
    """Python does not keep docstrings of fields and enum members. Base classes included."""
    found = dict[str, str]()
    for one in reversed(known.__mro__):
        if one is known or (issubclass(one, Struct) and one is not Struct):
            found |= _of_module(one.__module__)[one.__name__]
    return found


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {one.name: dict(_of_class(one)) for one in tree.body if isinstance(one, ast.ClassDef)}


def _of_class(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(definition.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, _in_json(" ".join(words.split()))


def _in_json(words: str) -> str:
    return re.sub(r"\bNone\b", "null", words)

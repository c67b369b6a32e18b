"""What commands print with --json, held to their schemas by another reader of them than the one that made them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from mirror_core.cli.json_schema import list_json_commands, make_schema
from mirror_core.cli.lazy_group import list_lazy_commands


def check_document(arguments: Sequence[str], out: str) -> None:
    """Nothing, unless a command was told --json and printed something that its schema does not say, key by key."""
    if "--json" not in arguments or not out.strip():
        return
    at = next(number for number, word in enumerate(arguments) if word in list_lazy_commands())
    known = validators(arguments[at])
    name = " ".join(arguments[at : at + 2])
    check(known[name if name in known else arguments[at]], json.loads(out))


def check(validator: Draft202012Validator, document: object) -> None:
    wrong = best_match(validator.iter_errors(document))
    assert wrong is None, f"{validator.schema['title']}: {wrong.json_path}: {wrong.message}"


@cache
def validators(group: str) -> dict[str, Draft202012Validator]:
    """By the names of the commands."""
    return {name: strict(make_schema(name, command)) for name, command in list_json_commands(group)}


def strict(of: dict[str, Any]) -> Draft202012Validator:
    """Readers have to ignore keys that they don't know; here nothing may be written that no type says."""
    for part in of["$defs"].values():
        if "properties" in part:
            part["additionalProperties"] = False
    return Draft202012Validator(of)

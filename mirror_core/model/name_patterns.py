"""Regular expressions of users, over whole names of topics and groups, matched in linear time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2

from mirror_core.model.errors import BadRequest

_NO_LOWER_BOUND: Final = re.compile(r"\{,\d*\}")
"""Python repeats, RE2 takes it literally, and no topic would match."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """An expression in RE2's syntax: what could backtrack (lookaround, back references) is not in it."""

    expression: str
    _compiled: Any = field(repr=False, compare=False)

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None


@lru_cache(maxsize=128)
def compile_name_pattern(where: str, expression: str) -> NamePattern:
    """BadRequest begins with `where`: the option or place that gave the expression."""
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True  # group names may hold line breaks
    try:
        if found := _NO_LOWER_BOUND.search(expression):
            raise BadRequest(f"{where} {expression!r}: RE2 needs a lower bound: write {{0{found[0][1:]}")
        return NamePattern(expression, re2.compile(expression, options))
    except re2.error as error:
        (why,) = error.args
        reason = why.decode(errors="replace")
    except UnicodeEncodeError:
        reason = "it is no text"
    raise BadRequest(
        f"{where} {expression!r} is not a regular expression in RE2's syntax, which has no lookaround and no back "
        f"references: {reason}"
    )

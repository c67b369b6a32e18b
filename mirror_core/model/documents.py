"""JSON documents that commands print for machines. The type is the document: its schema is made from it.

`mirrorbook json-schema` prints the schemas, with the docstrings of types and fields as descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

Command = TypeVar("Command", bound=Callable[..., None])

_OBEYED: Final = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_DOCUMENTS: Final = "__documents__"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All that a command prints with --json. No field has a default: a machine finds each key in each document."""


def prints(*documents: type[Document]) -> Callable[[Command], Command]:
    """Says which document a command prints with --json; of several, one."""

    def told(command: Command) -> Command:
        setattr(command, _DOCUMENTS, documents)
        return command

    return told


def printed_by(command: Callable[..., object]) -> tuple[type[Document], ...]:
    """The documents that a command prints; none where nobody said so."""
    found: tuple[type[Document], ...] = getattr(command, _DOCUMENTS, ())
    return found


def as_text(document: object) -> str:
    """JSON, with indents."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    # JSON escapes C0 only; a terminal obeys C1 and bidirectional marks, too. They can stand in strings only.
    return _OBEYED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]

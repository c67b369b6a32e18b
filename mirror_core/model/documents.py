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
    """No field has a default, so every key is always present."""


def prints(*documents: type[Document]) -> Callable[[Command], Command]:
    """Declares which documents (one of several) a command prints with --json."""

    def told(command: Command) -> Command:
        setattr(command, _DOCUMENTS, documents)
        return command

    return told


def printed_by(command: Callable[..., object]) -> tuple[type[Document], ...]:
    found: tuple[type[Document], ...] = getattr(command, _DOCUMENTS, ())
    return found


def as_text(document: object) -> str:
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    # JSON escapes C0 only; terminals obey C1 and bidirectional marks, too.
    return _OBEYED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]

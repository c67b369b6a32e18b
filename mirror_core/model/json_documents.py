from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

Command = TypeVar("Command", bound=Callable[..., None])

_TERMINAL_CONTROLS: Final = re.compile(r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_DOCUMENTS_ATTRIBUTE: Final = "__documents__"


class JsonDocument(msgspec.Struct, frozen=True, kw_only=True):
    """No field has a default, so every key is always present."""


def prints_json(*documents: type[JsonDocument]) -> Callable[[Command], Command]:
    """Declares which documents (one of several) a command prints with --json."""

    def declare(command: Command) -> Command:
        setattr(command, _DOCUMENTS_ATTRIBUTE, documents)
        return command

    return declare


def get_printed_documents(command: Callable[..., object]) -> tuple[type[JsonDocument], ...]:
    documents: tuple[type[JsonDocument], ...] = getattr(command, _DOCUMENTS_ATTRIBUTE, ())
    return documents


def format_json(document: object) -> str:
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    # JSON escapes C0 only; terminals obey C1 and bidirectional marks, too.
    return _TERMINAL_CONTROLS.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]

"""A run's audit log.

Each line holds the previous line's hash: whoever changes or removes one must rewrite all later ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

FIRST_LINE_HASH: Final = "0" * 64


class AuditEntryKind(StrEnum):
    BEGUN = "begun"
    """The run, its plan hashes, and who approved it."""
    CONDUCTOR_CHANGED = "conductor_changed"
    STOP_CONFIRMED = "stop_confirmed"
    """By a person: applications may be stopped."""
    STEP = "step"
    ABORTING = "aborting"
    ENDED = "ended"
    FILE = "file"
    """Size and hash of a bundle's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    run: str
    number: int
    line: str
    """Canonical JSON of an `AuditEntry`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    n: int
    run: str
    at_ms: int
    by: str
    kind: AuditEntryKind
    body: Mapping[str, Any]
    before: str
    """SHA-256 (hexadecimal) of the previous line."""


def hash_line(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


def get_head_hash(lines: Sequence[str]) -> str:
    return hash_line(lines[-1]) if lines else FIRST_LINE_HASH


def to_canonical_json(value: object) -> str:
    """Sorted keys, no blanks."""
    return msgspec.json.encode(msgspec.to_builtins(value), order="sorted").decode()


def build_next_line(
    lines: Sequence[str], *, run: str, at_ms: int, by: str, kind: AuditEntryKind, body: object
) -> AuditLine:
    content = msgspec.to_builtins(body)
    entry = AuditEntry(n=len(lines), run=run, at_ms=at_ms, by=by, kind=kind, body=content, before=get_head_hash(lines))
    return AuditLine(run=run, number=len(lines), line=to_canonical_json(entry))


_ENTRY_DECODER: Final = msgspec.json.Decoder(AuditEntry)  # at import: see `state.state_records`


def renumber_line(audit_line: AuditLine, lines: Sequence[str]) -> AuditLine:
    entry = _ENTRY_DECODER.decode(audit_line.line)
    return build_next_line(lines, run=entry.run, at_ms=entry.at_ms, by=entry.by, kind=entry.kind, body=entry.body)

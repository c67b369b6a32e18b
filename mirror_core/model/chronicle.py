"""Hash-chained audit log of a run.

Each line holds the previous line's hash, so none can be changed or removed without rewriting all later ones. The
bundle's signature detects that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

BEGINNING: Final = "0" * 64


class Kind(StrEnum):
    BEGUN = "begun"
    """The run, its plan hashes, and who approved it."""
    CONDUCTED = "conducted"
    AGREED = "agreed"
    """A person confirmed that applications may be stopped."""
    STEP = "step"
    ABORTING = "aborting"
    ENDED = "ended"
    FILE = "file"
    """Size and hash of a file in the bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """As stored in the state topic."""

    run: str
    number: int
    line: str
    """Canonical JSON of an `AuditEntry`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    n: int
    run: str
    at_ms: int
    by: str
    kind: Kind
    body: Mapping[str, Any]
    before: str
    """SHA-256 (hexadecimal) of the previous line."""


def hash_of(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


def head_of(lines: Sequence[str]) -> str:
    return hash_of(lines[-1]) if lines else BEGINNING


def canonical(value: object) -> str:
    """JSON as it is hashed: sorted keys, no blanks."""
    return msgspec.json.encode(msgspec.to_builtins(value), order="sorted").decode()


def next_line(lines: Sequence[str], *, run: str, at_ms: int, by: str, kind: Kind, body: object) -> Told:
    said = msgspec.to_builtins(body)
    entry = Entry(n=len(lines), run=run, at_ms=at_ms, by=by, kind=kind, body=said, before=head_of(lines))
    return Told(run=run, number=len(lines), line=canonical(entry))


_ENTRY: Final = msgspec.json.Decoder(Entry)  # at import: see `state.state_records`


def renumbered(told: Told, lines: Sequence[str]) -> Told:
    """Rebuilds a line so that it follows these lines."""
    said = _ENTRY.decode(told.line)
    return next_line(lines, run=said.run, at_ms=said.at_ms, by=said.by, kind=said.kind, body=said.body)

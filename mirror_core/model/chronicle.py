"""What happened in a run, line by line. Each line holds the hash of the one before it: none can be altered, moved or
taken out without all that follow being written anew. Who may write all of them anew is met by a signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

BEGINNING: Final = "0" * 64
"""What the first line holds in place of a hash."""


class Kind(StrEnum):
    """What a line tells of."""

    BEGUN = "begun"
    """The run, whose plan (by its hashes), and who approved it."""
    CONDUCTED = "conducted"
    """Another one takes its steps from here on."""
    AGREED = "agreed"
    """Somebody said that applications may be stopped now."""
    STEP = "step"
    """A step begins, is done, or has failed: with all that it saw."""
    ABORTING = "aborting"
    ENDED = "ended"
    FILE = "file"
    """A file that lies beside: its size and hash. Written when all has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One line, as it stands in the state topic."""

    run: str
    number: int
    """From 0."""
    line: str
    """JSON of an `Entry`, in the one form that there is of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a line says."""

    n: int
    run: str
    at_ms: int
    """Wall clock of whoever wrote it."""
    by: str
    kind: Kind
    body: Mapping[str, Any]
    before: str
    """SHA-256 of the line before, in hexadecimal digits."""


def hash_of(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


def head_of(lines: Sequence[str]) -> str:
    """The hash that stands for all of them."""
    return hash_of(lines[-1]) if lines else BEGINNING


def canonical(value: object) -> str:
    """JSON in the one form that is hashed: keys in order, no blanks."""
    return msgspec.json.encode(msgspec.to_builtins(value), order="sorted").decode()


def next_line(lines: Sequence[str], *, run: str, at_ms: int, by: str, kind: Kind, body: object) -> Told:
    """What is told next; `body`: a dataclass or a mapping."""
    said = msgspec.to_builtins(body)
    entry = Entry(n=len(lines), run=run, at_ms=at_ms, by=by, kind=kind, body=said, before=head_of(lines))
    return Told(run=run, number=len(lines), line=canonical(entry))


_ENTRY: Final = msgspec.json.Decoder(Entry)  # once, by the thread that imports this: see `state/records.py`


def renumbered(told: Told, lines: Sequence[str]) -> Told:
    """The same, to be told next after these lines."""
    said = _ENTRY.decode(told.line)
    return next_line(lines, run=said.run, at_ms=said.at_ms, by=said.by, kind=said.kind, body=said.body)

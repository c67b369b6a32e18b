"""Saves records to Parquet before their log is truncated.

A salvage is written beside its place, counted against the log, synced to disk, and then moved into place. It is never
overwritten: after a repeated step it may be the only copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mirror_core.model.parity import Fate
from mirror_core.parity.keyed_digest import digest_in_memory
from mirror_core.wire.records import Record

_TOMBSTONE: Final = b""
"""Digests of values have 16 bytes."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Which keys of a tail the other cluster has."""

    same: frozenset[tuple[bytes, bytes]]
    """Digests of keys and values found there."""
    keys: frozenset[bytes]
    """Digests of keys found there."""

    def fate(self, record: Record) -> Fate:
        if record.key is None:
            return Fate.UNKEYED
        key = digest_in_memory(record.key)
        if (key, _value(record)) in self.same:
            return Fate.THERE
        return Fate.CONFLICTING if key in self.keys else Fate.MISSING


def look_for(tail: Iterable[Record], other: Iterable[Record]) -> Elsewhere:
    """Memory grows with the tail, which is read first, not with the other log."""
    wanted: dict[bytes, set[bytes]] = {}
    for record in tail:
        if record.key is not None:
            wanted.setdefault(digest_in_memory(record.key), set()).add(_value(record))
    same, keys = set[tuple[bytes, bytes]](), set[bytes]()
    for record in other if wanted else ():
        if record.key is None:
            continue
        key = digest_in_memory(record.key)
        if key in wanted:
            keys.add(key)
            if (value := _value(record)) in wanted[key]:
                same.add((key, value))
    return Elsewhere(frozenset(same), frozenset(keys))


def _value(record: Record) -> bytes:
    return _TOMBSTONE if record.value is None else digest_in_memory(record.value)

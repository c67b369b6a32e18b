"""Saves records to Parquet before their log is truncated.

A salvage is written beside its place, counted against the log, synced to disk, and then moved into place. It is never
overwritten: after a repeated step it may be the only copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mirror_core.model.parity import SalvageMatch
from mirror_core.parity.keyed_digest import digest_in_memory
from mirror_core.wire.records import Record

_TOMBSTONE: Final = b""
"""Digests of values have 16 bytes."""


@dataclass(frozen=True, slots=True)
class TailMatches:
    """Which keys of a tail the other cluster has."""

    same_values: frozenset[tuple[bytes, bytes]]
    """Digests of keys and values found there."""
    keys: frozenset[bytes]
    """Digests of keys found there."""

    def find_fate(self, record: Record) -> SalvageMatch:
        if record.key is None:
            return SalvageMatch.UNKEYED
        key = digest_in_memory(record.key)
        if (key, _digest_value(record)) in self.same_values:
            return SalvageMatch.SAME_VALUE
        return SalvageMatch.CONFLICTING if key in self.keys else SalvageMatch.MISSING


def find_tail_records(tail: Iterable[Record], other: Iterable[Record]) -> TailMatches:
    """Memory grows with the tail, which is read first, not with the other log."""
    tail_values: dict[bytes, set[bytes]] = {}
    for record in tail:
        if record.key is not None:
            tail_values.setdefault(digest_in_memory(record.key), set()).add(_digest_value(record))
    same_values, found_keys = set[tuple[bytes, bytes]](), set[bytes]()
    for record in other if tail_values else ():
        if record.key is None:
            continue
        key = digest_in_memory(record.key)
        if key in tail_values:
            found_keys.add(key)
            if (value := _digest_value(record)) in tail_values[key]:
                same_values.add((key, value))
    return TailMatches(frozenset(same_values), frozenset(found_keys))


def _digest_value(record: Record) -> bytes:
    return _TOMBSTONE if record.value is None else digest_in_memory(record.value)

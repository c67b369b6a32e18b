"""Compares two record streams, and decides which differences of a compacted topic are explained."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.kafka.log_faults import Damaged
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import Finding, unreadable_on
from mirror_core.parity.keyed_digest import DigestKey, KeyedDigest, digest_in_memory
from mirror_core.wire.records import Record

KEPT_PER_CHUNK: Final = 100
SHOWN_BYTES: Final = 200
"""Limit for each key, value and header."""
_INT64: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Digests cover every record of a side, in order."""

    src_count: int
    dst_count: int
    src_digest: str
    dst_digest: str
    findings: tuple[Finding, ...]
    """The first ones by offset."""
    differing: int
    """Number of all differences."""
    lone: Lone
    """Keys of a compacted topic yet to be explained."""


@dataclass(frozen=True, slots=True)
class Alone:
    finding: Finding
    """Applies if nothing explains the record."""
    offset: int
    tombstone: bool


Lone = dict[bytes, Alone]
"""Newest lone record by `digest_in_memory` of the key; it explains older ones."""


@dataclass(slots=True)
class _Stream:
    records: Iterator[Record]
    digest: KeyedDigest
    count: int = 0
    head: Record | None = None

    def advance(self, record: Record, content: bytes) -> None:
        """Count the current record and go on."""
        self.count += 1
        self.digest.update(_INT64.pack(record.offset))
        self.digest.update(content)
        self.skip()

    def skip(self) -> None:
        self.head = next(self.records, None)


def compare_records(
    partition: Partition,
    source: Iterator[Record],
    destination: Iterator[Record],
    *,
    compacted: bool = False,
    unkeyed_go: bool = False,
    values: bool = False,
) -> Difference:
    """Merge both sides by offset.

    Memory grows only with the lone keys of a `compacted` topic; these are not counted here. `unkeyed_explained`: a lone
    record without a key is no difference. `values`: findings show values.
    """
    say = _Words(partition, values)
    key = DigestKey.random()
    src, dst = _Stream(source, KeyedDigest(key)), _Stream(destination, KeyedDigest(key))
    findings: list[Finding] = []
    pairs: dict[int, tuple[bytes, bytes]] = {}
    lone: Lone = {}
    differing = 0
    src.skip()
    dst.skip()
    while src.head is not None or dst.head is not None:
        one, two = src.head, dst.head
        if two is None or (one is not None and one.offset < two.offset):
            assert one is not None
            found = [say.alone(one, "missing", "the source's record is not on the destination")]
            if unkeyed_go if one.key is None else compacted:
                found = _set_aside(lone, one, found[0])
                src.skip()
            else:
                src.advance(one, canonical(one))
        elif one is None or two.offset < one.offset:
            found = [say.alone(two, "extra", "the destination's record is not on the source")]
            if unkeyed_go if two.key is None else compacted:
                found = _set_aside(lone, two, found[0])
                dst.skip()
            else:
                dst.advance(two, canonical(two))
        else:
            equal = one == two
            found = [] if equal else say.altered(one, two)
            here = canonical(one)
            there = here if equal else canonical(two)
            if found and len(pairs) < KEPT_PER_CHUNK:
                pairs[one.offset] = here, there
            src.advance(one, here)
            dst.advance(two, there)
        differing += len(found)
        findings += found[: KEPT_PER_CHUNK - len(findings)]
    return Difference(
        src_count=src.count,
        dst_count=dst.count,
        src_digest=src.digest.hexdigest(),
        dst_digest=dst.digest.hexdigest(),
        findings=tuple(_moved(findings, pairs)),
        differing=differing,
        lone=lone,
    )


def _set_aside(lone: Lone, record: Record, finding: Finding) -> list[Finding]:
    """The newest record of a key decides, and may lie behind this chunk."""
    if record.key is None:
        return []
    lone[digest_in_memory(record.key)] = Alone(finding, record.offset, record.value is None)
    return []


def canonical(record: Record) -> bytes:
    """Without the offset; different records give different bytes."""
    parts = [
        _INT64.pack(record.timestamp_ms),
        _sized(record.key),
        _sized(record.value),
        _SIZE.pack(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += [_sized(name), _sized(value)]
    return b"".join(parts)


def _sized(data: bytes | None) -> bytes:
    return _SIZE.pack(-1) if data is None else _SIZE.pack(len(data)) + data


@dataclass(frozen=True, slots=True)
class _Words:
    partition: Partition
    values: bool
    """Else only sizes and digests: a report must not carry other people's data."""

    def alone(self, record: Record, kind: str, text: str) -> Finding:
        if self.values:
            text = f"{text}: key {self.shown(record.key)}; value {self.shown(record.value)}"
        return self._finding(record, kind, text)

    def altered(self, one: Record, two: Record) -> list[Finding]:
        found = []
        if one.key != two.key:
            found.append(self._pair(one, "key", self.shown(one.key), self.shown(two.key)))
        if one.value != two.value:
            found.append(self._pair(one, "value", self.shown(one.value), self.shown(two.value)))
        if one.headers != two.headers:
            found.append(self._headers(one, two))
        if one.timestamp_ms != two.timestamp_ms:
            found.append(self._pair(one, "timestamp", f"{one.timestamp_ms} ms", f"{two.timestamp_ms} ms"))
        return found

    def shown(self, data: bytes | None) -> str:
        if data is None:
            return "null"
        if self.values:
            return f"{data[:SHOWN_BYTES]!r}" + (f"... ({len(data)} bytes)" if len(data) > SHOWN_BYTES else "")
        return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"

    def _headers(self, one: Record, two: Record) -> Finding:
        here, there = one.headers, two.headers
        if len(here) != len(there):
            return self._pair(one, "headers", f"{len(here)} header(s)", str(len(there)))
        number = next(n for n, pair in enumerate(zip(here, there, strict=True)) if pair[0] != pair[1])
        what = f"header {number + 1} of {len(here)}"
        if self.values:
            sides = (f"{self.shown(name)} = {self.shown(value)}" for name, value in (here[number], there[number]))
            return self._pair(one, "headers", f"{what}: {next(sides)}", next(sides))
        return self._finding(one, "headers", f"{what} differs")

    def _pair(self, record: Record, kind: str, here: str, there: str) -> Finding:
        return self._finding(record, kind, f"{here}; on the destination {there}")

    def _finding(self, record: Record, kind: str, text: str) -> Finding:
        return Finding(partition=self.partition, offset=Offset(record.offset), kind=kind, detail=text)


def _moved(findings: list[Finding], pairs: dict[int, tuple[bytes, bytes]]) -> list[Finding]:
    """Name differences `reordered` whose record is at another offset of the other side."""
    at = {there: offset for offset, (_, there) in pairs.items()}
    named: list[Finding] = []
    for finding in findings:
        offset = finding.offset
        elsewhere = at.get(pairs[offset][0]) if offset in pairs else None
        if offset is None or elsewhere is None or elsewhere == offset:
            named.append(finding)
        elif not named or (named[-1].kind, named[-1].offset) != ("reordered", offset):
            text = f"the source's record of this offset is at offset {elsewhere} on the destination"
            named.append(replace(finding, kind="reordered", detail=text))
    return named


def damage(partition: Partition, error: MirrorError | str, start: Offset, end: Offset) -> tuple[Finding, ...]:
    if not isinstance(error, Damaged) or not start <= error.offset < end:
        return ()
    kind = unreadable_on(error.cluster)
    return (Finding(partition=partition, offset=error.offset, kind=kind, detail=str(error)),)

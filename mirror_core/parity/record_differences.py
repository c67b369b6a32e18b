"""Which differences of a compacted topic are explained."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.decide.parity_result import ParityRow
from mirror_core.kafka.log_reader import LogDamaged, LogReader, LogTrimmed
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, format_unreadable_kind
from mirror_core.model.text import format_count
from mirror_core.parity.keyed_digest import DigestKey, KeyedDigest, digest_in_memory
from mirror_core.wire.records import Record

MAX_FINDINGS_PER_CHUNK: Final = 100
MAX_SHOWN_BYTES: Final = 200
"""For each key, value and header."""
_INT64: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDifferences:
    """Digests cover every record of a side, in order."""

    src_count: int
    dst_count: int
    src_digest: str
    dst_digest: str
    findings: tuple[ParityFinding, ...]
    """The first ones by offset."""
    differing: int
    lone: LoneRecords
    """Keys of a compacted topic yet to be explained."""


@dataclass(frozen=True, slots=True)
class LoneRecord:
    finding: ParityFinding
    """Applies if nothing explains the record."""
    offset: int
    is_tombstone: bool


LoneRecords = dict[bytes, LoneRecord]
"""Newest lone record by `digest_in_memory` of the key; it explains older ones."""


@dataclass(slots=True)
class _RecordStream:
    records: Iterator[Record]
    digest: KeyedDigest
    count: int = 0
    head: Record | None = None

    def advance(self, record: Record, content: bytes) -> None:
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
    unkeyed_explained: bool = False,
    values: bool = False,
) -> RecordDifferences:
    """Merges both sides by offset.

    Memory grows only with the lone keys of a `compacted` topic; these are not counted here. `unkeyed_explained`: a lone
    record without a key is no difference. `values`: findings show values.
    """
    findings_format = _FindingFormat(partition, values)
    key = DigestKey.generate()
    src, dst = _RecordStream(source, KeyedDigest(key)), _RecordStream(destination, KeyedDigest(key))
    findings: list[ParityFinding] = []
    pairs: dict[int, tuple[bytes, bytes]] = {}
    lone_records: LoneRecords = {}
    differing = 0
    src.skip()
    dst.skip()
    while src.head is not None or dst.head is not None:
        src_record, dst_record = src.head, dst.head
        if dst_record is None or (src_record is not None and src_record.offset < dst_record.offset):
            assert src_record is not None
            new_findings = [
                findings_format.format_lone(src_record, "missing", "the source's record is not on the destination")
            ]
            if unkeyed_explained if src_record.key is None else compacted:
                new_findings = _keep_lone(lone_records, src_record, new_findings[0])
                src.skip()
            else:
                src.advance(src_record, encode_canonical(src_record))
        elif src_record is None or dst_record.offset < src_record.offset:
            new_findings = [
                findings_format.format_lone(dst_record, "extra", "the destination's record is not on the source")
            ]
            if unkeyed_explained if dst_record.key is None else compacted:
                new_findings = _keep_lone(lone_records, dst_record, new_findings[0])
                dst.skip()
            else:
                dst.advance(dst_record, encode_canonical(dst_record))
        else:
            is_equal = src_record == dst_record
            new_findings = [] if is_equal else findings_format.list_altered(src_record, dst_record)
            src_bytes = encode_canonical(src_record)
            dst_bytes = src_bytes if is_equal else encode_canonical(dst_record)
            if new_findings and len(pairs) < MAX_FINDINGS_PER_CHUNK:
                pairs[src_record.offset] = digest_in_memory(src_bytes), digest_in_memory(dst_bytes)
            src.advance(src_record, src_bytes)
            dst.advance(dst_record, dst_bytes)
        differing += len(new_findings)
        findings += new_findings[: MAX_FINDINGS_PER_CHUNK - len(findings)]
    return RecordDifferences(
        src_count=src.count,
        dst_count=dst.count,
        src_digest=src.digest.hexdigest(),
        dst_digest=dst.digest.hexdigest(),
        findings=tuple(_mark_reordered(findings, pairs)),
        differing=differing,
        lone=lone_records,
    )


def _keep_lone(lone_records: LoneRecords, record: Record, finding: ParityFinding) -> list[ParityFinding]:
    """The newest record of a key decides, and may lie behind this chunk."""
    if record.key is None:
        return []
    lone_records[digest_in_memory(record.key)] = LoneRecord(finding, record.offset, record.value is None)
    return []


def encode_canonical(record: Record) -> bytes:
    """Without the offset; different records give different bytes."""
    parts = [
        _INT64.pack(record.timestamp_ms),
        _encode_sized(record.key),
        _encode_sized(record.value),
        _SIZE.pack(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += [_encode_sized(name), _encode_sized(value)]
    return b"".join(parts)


def _encode_sized(data: bytes | None) -> bytes:
    return _SIZE.pack(-1) if data is None else _SIZE.pack(len(data)) + data


@dataclass(frozen=True, slots=True)
class _FindingFormat:
    partition: Partition
    values: bool
    """Else only sizes and digests: a report must not carry other people's data."""

    def format_lone(self, record: Record, kind: str, text: str) -> ParityFinding:
        if self.values:
            text = f"{text}: key {self.format_bytes(record.key)}; value {self.format_bytes(record.value)}"
        return self._to_finding(record, kind, text)

    def list_altered(self, src_record: Record, dst_record: Record) -> list[ParityFinding]:
        findings = []
        if src_record.key != dst_record.key:
            findings.append(
                self._to_pair_finding(
                    src_record, "key", self.format_bytes(src_record.key), self.format_bytes(dst_record.key)
                )
            )
        if src_record.value != dst_record.value:
            findings.append(
                self._to_pair_finding(
                    src_record, "value", self.format_bytes(src_record.value), self.format_bytes(dst_record.value)
                )
            )
        if src_record.headers != dst_record.headers:
            findings.append(self._compare_headers(src_record, dst_record))
        if src_record.timestamp_ms != dst_record.timestamp_ms:
            findings.append(
                self._to_pair_finding(
                    src_record, "timestamp", f"{src_record.timestamp_ms} ms", f"{dst_record.timestamp_ms} ms"
                )
            )
        return findings

    def format_bytes(self, data: bytes | None) -> str:
        if data is None:
            return "null"
        if self.values:
            return f"{data[:MAX_SHOWN_BYTES]!r}" + (f"... ({len(data)} bytes)" if len(data) > MAX_SHOWN_BYTES else "")
        return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"

    def _compare_headers(self, src_record: Record, dst_record: Record) -> ParityFinding:
        src_headers, dst_headers = src_record.headers, dst_record.headers
        if len(src_headers) != len(dst_headers):
            return self._to_pair_finding(
                src_record, "headers", format_count(len(src_headers), "header"), str(len(dst_headers))
            )
        number = next(n for n, pair in enumerate(zip(src_headers, dst_headers, strict=True)) if pair[0] != pair[1])
        text = f"header {number + 1} of {len(src_headers)}"
        if self.values:
            sides = (
                f"{self.format_bytes(name)} = {self.format_bytes(value)}"
                for name, value in (src_headers[number], dst_headers[number])
            )
            return self._to_pair_finding(src_record, "headers", f"{text}: {next(sides)}", next(sides))
        return self._to_finding(src_record, "headers", f"{text} differs")

    def _to_pair_finding(self, record: Record, kind: str, src_text: str, dst_text: str) -> ParityFinding:
        return self._to_finding(record, kind, f"{src_text}; on the destination {dst_text}")

    def _to_finding(self, record: Record, kind: str, text: str) -> ParityFinding:
        return ParityFinding(partition=self.partition, offset=Offset(record.offset), kind=kind, detail=text)


def _mark_reordered(findings: list[ParityFinding], pairs: dict[int, tuple[bytes, bytes]]) -> list[ParityFinding]:
    offset_by_digest = {dst_digest: offset for offset, (_, dst_digest) in pairs.items()}
    named: list[ParityFinding] = []
    for finding in findings:
        offset = finding.offset
        elsewhere = offset_by_digest.get(pairs[offset][0]) if offset in pairs else None
        if offset is None or elsewhere is None or elsewhere == offset:
            named.append(finding)
        elif not named or (named[-1].kind, named[-1].offset) != ("reordered", offset):
            text = f"the source's record of this offset is at offset {elsewhere} on the destination"
            named.append(replace(finding, kind="reordered", detail=text))
    return named


def find_damage(
    partition: Partition, error: MirrorError | str, start: Offset, end: Offset
) -> tuple[ParityFinding, ...]:
    if not isinstance(error, LogDamaged) or not start <= error.offset < end:
        return ()
    kind = format_unreadable_kind(error.cluster)
    return (ParityFinding(partition=partition, offset=error.offset, kind=kind, detail=str(error)),)


def add_unexplained(
    source: LogReader,
    destination: LogReader,
    rows: list[ParityRow],
    lone_by_row: dict[int, LoneRecords],
    stopped_at: Offset | None,
) -> list[ParityRow]:
    """Adds findings for lone records of a compacted topic that compaction does not explain.

    The cleaner removes a record when its key has a newer one, and a tombstone (after delete.retention.ms) when nothing
    older of its key is left. So logs are read to their ends, and for tombstones from the start. Source records beyond
    the destination's end, or from `stopped_at` on, have removed nothing there.
    """
    newest_lone: dict[bytes, LoneRecord] = {}
    for lone_records in lone_by_row.values():
        for digest, record in lone_records.items():
            if digest not in newest_lone or newest_lone[digest].offset < record.offset:
                newest_lone[digest] = record
    partition = rows[0].partition
    try:
        copied_end = destination.stable_end(partition)
        if stopped_at is not None:
            copied_end = min(copied_end, stopped_at)
        _drop_replaced(destination, partition, newest_lone)
        _drop_replaced(source, partition, newest_lone, copied_end)
        for reader, kind in ((source, "extra"), (destination, "missing")):
            _drop_retired(reader, partition, newest_lone, kind)
    except LogTrimmed:
        raise
    except MirrorError as error:
        return [to_failed_row(row, error) if lone_by_row.get(number) else row for number, row in enumerate(rows)]
    for number, lone_records in lone_by_row.items():
        # An older lone record is explained by the newer one of its key.
        unexplained = [record.finding for digest, record in lone_records.items() if newest_lone.get(digest) == record]
        findings = sorted([*rows[number].findings, *unexplained], key=lambda f: f.offset or 0)[:MAX_FINDINGS_PER_CHUNK]
        rows[number] = replace(
            rows[number], findings=tuple(findings), differing=rows[number].differing + len(unexplained)
        )
    return rows


def to_failed_row(row: ParityRow, error: MirrorError) -> ParityRow:
    return replace(row, error=str(error), src_count=None, dst_count=None, src_digest="", dst_digest="")


def read_records(reader: LogReader, partition: Partition, start: Offset, end: Offset) -> Iterator[Record]:
    return (record for _, record in reader.records(partition, start, end))


def _drop_replaced(
    reader: LogReader, partition: Partition, newest_lone: LoneRecords, copied_end: Offset | None = None
) -> None:
    """Keys with a newer record in this log; for missing ones below `copied_end`."""
    if not newest_lone:
        return
    first = Offset(min(lone_record.offset for lone_record in newest_lone.values()))
    start = max(first, reader.log_start(partition))
    for record in read_records(reader, partition, start, reader.stable_end(partition)):
        digest = b"" if record.key is None else digest_in_memory(record.key)
        lone_record = newest_lone.get(digest)
        if lone_record is None or record.offset <= lone_record.offset:
            continue
        if copied_end is None or record.offset < copied_end or lone_record.finding.kind == "extra":
            del newest_lone[digest]
            if not newest_lone:
                return


def _drop_retired(reader: LogReader, partition: Partition, newest_lone: LoneRecords, kind: str) -> None:
    """Tombstones that this log lacks together with all that they deleted."""
    retired = {digest: lone for digest, lone in newest_lone.items() if lone.is_tombstone and lone.finding.kind == kind}
    if not retired:
        return
    end = Offset(max(lone_record.offset for lone_record in retired.values()))
    for record in read_records(reader, partition, reader.log_start(partition), end):
        digest = b"" if record.key is None else digest_in_memory(record.key)
        if digest in retired and record.offset < retired[digest].offset:
            del retired[digest]  # it still shows what was deleted
            if not retired:
                return
    for digest in retired:
        del newest_lone[digest]

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirror_core.decide.parity import ParityRow
from mirror_core.kafka.log_faults import LogTrimmed
from mirror_core.kafka.reader import LogReader
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.parity.differences import MAX_FINDINGS_PER_CHUNK, LoneRecord, LoneRecords
from mirror_core.parity.keyed_digest import digest_in_memory
from mirror_core.wire.records import Record


def add_unexplained(
    source: LogReader,
    destination: LogReader,
    rows: list[ParityRow],
    lone_by_row: dict[int, LoneRecords],
    stopped_at: Offset | None,
) -> list[ParityRow]:
    """Add findings for lone records of a compacted topic that compaction does not explain.

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
    """Drop keys with a newer record in this log; for missing ones below `copied_end`."""
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
    """Drop tombstones that this log lacks together with all that they deleted."""
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

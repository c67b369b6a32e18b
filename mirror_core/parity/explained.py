from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirror_core.decide.parity import Row
from mirror_core.kafka.log_faults import Trimmed
from mirror_core.kafka.reader import LogReader
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.parity.differences import KEPT_PER_CHUNK, Alone, Lone
from mirror_core.parity.keyed_digest import digest_in_memory
from mirror_core.wire.records import Record


def explained(
    source: LogReader,
    destination: LogReader,
    rows: list[Row],
    lone: dict[int, Lone],
    stopped_at: Offset | None,
) -> list[Row]:
    """Add findings for lone records of a compacted topic that compaction does not explain.

    The cleaner removes a record when its key has a newer one, and a tombstone (after delete.retention.ms) when nothing
    older of its key is left. So logs are read to their ends, and for tombstones from the start. Source records beyond
    the destination's end, or from `stopped_at` on, have removed nothing there.
    """
    newest: dict[bytes, Alone] = {}
    for found in lone.values():
        for digest, alone in found.items():
            if digest not in newest or newest[digest].offset < alone.offset:
                newest[digest] = alone
    partition = rows[0].partition
    try:
        copied = destination.stable_end(partition)
        if stopped_at is not None:
            copied = min(copied, stopped_at)
        _strike_replaced(destination, partition, newest)
        _strike_replaced(source, partition, newest, copied)
        for reader, kind in ((source, "extra"), (destination, "missing")):
            _strike_retired(reader, partition, newest, kind)
    except Trimmed:
        raise
    except MirrorError as error:
        return [failed(row, error) if lone.get(number) else row for number, row in enumerate(rows)]
    for number, found in lone.items():
        # An older lone record is explained by the newer one of its key.
        left = [alone.finding for digest, alone in found.items() if newest.get(digest) == alone]
        kept = sorted([*rows[number].findings, *left], key=lambda f: f.offset or 0)[:KEPT_PER_CHUNK]
        rows[number] = replace(rows[number], findings=tuple(kept), differing=rows[number].differing + len(left))
    return rows


def failed(row: Row, error: MirrorError) -> Row:
    return replace(row, error=str(error), src_count=None, dst_count=None, src_digest="", dst_digest="")


def records_of(reader: LogReader, partition: Partition, start: Offset, end: Offset) -> Iterator[Record]:
    return (record for _, record in reader.records(partition, start, end))


def _strike_replaced(reader: LogReader, partition: Partition, newest: Lone, copied: Offset | None = None) -> None:
    """Drop keys with a newer record in this log; for missing ones below `copied_end`."""
    if not newest:
        return
    first = Offset(min(alone.offset for alone in newest.values()))
    start = max(first, reader.log_start(partition))
    for record in records_of(reader, partition, start, reader.stable_end(partition)):
        digest = b"" if record.key is None else digest_in_memory(record.key)
        alone = newest.get(digest)
        if alone is None or record.offset <= alone.offset:
            continue
        if copied is None or record.offset < copied or alone.finding.kind == "extra":
            del newest[digest]
            if not newest:
                return


def _strike_retired(reader: LogReader, partition: Partition, newest: Lone, kind: str) -> None:
    """Drop tombstones that this log lacks together with all that they deleted."""
    retired = {digest: a for digest, a in newest.items() if a.tombstone and a.finding.kind == kind}
    if not retired:
        return
    end = Offset(max(alone.offset for alone in retired.values()))
    for record in records_of(reader, partition, reader.log_start(partition), end):
        digest = b"" if record.key is None else digest_in_memory(record.key)
        if digest in retired and record.offset < retired[digest].offset:
            del retired[digest]  # it still shows what was deleted
            if not retired:
                return
    for digest in retired:
        del newest[digest]

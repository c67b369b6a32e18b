"""Records of a compacted topic that one side has alone. Each cluster cleans at its own times, so both logs are read on
to tell what was cleaned from what is missing."""

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
    """The rows, with a finding for each record of a compacted topic that is on one side only, and should not be.

    The cleaner takes a record when there is a newer one of its key, and a tombstone when there is nothing older of its
    key left (after delete.retention.ms). So the logs are read on to their ends, and for tombstones from the beginning.
    What the source has beyond the destination's end is not copied yet, and has cleaned nothing there; nor has what it
    has from `stopped_at` on, where mirroring has ended: applications wrote the destination's own.
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
        # An older record of a key that stays in doubt is explained by the newer one that is in doubt itself.
        left = [alone.finding for digest, alone in found.items() if newest.get(digest) == alone]
        kept = sorted([*rows[number].findings, *left], key=lambda f: f.offset or 0)[:KEPT_PER_CHUNK]
        rows[number] = replace(rows[number], findings=tuple(kept), differing=rows[number].differing + len(left))
    return rows


def failed(row: Row, error: MirrorError) -> Row:
    """The row of what could not be compared for this reason."""
    return replace(row, error=str(error), src_count=None, dst_count=None, src_digest="", dst_digest="")


def records_of(reader: LogReader, partition: Partition, start: Offset, end: Offset) -> Iterator[Record]:
    """Those of [start, end), in order."""
    return (record for _, record in reader.records(partition, start, end))


def _strike_replaced(reader: LogReader, partition: Partition, newest: Lone, copied: Offset | None = None) -> None:
    """Forget keys of which this log holds something newer: of what is missing, something below `copied`."""
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
    """Forget tombstones that this log lacks together with all that they deleted."""
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

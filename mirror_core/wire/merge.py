"""Merges tiny batches of a partition: each costs brokers as much as kilobytes of records.

Only uncompressed ones, whose deltas change without touching keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirror_core.wire.batch import CODEC_MASK, HEADER_SIZE, BatchHeader, MalformedBatch
from mirror_core.wire.encode import batch_of, record
from mirror_core.wire.records import Codec, varint, wrapped
from mirror_core.wire.reencode import crosses_whole


def mergeable(header: BatchHeader) -> bool:
    """Dense, uncompressed, with create times, not a control batch."""
    return not header.attributes & CODEC_MASK and crosses_whole(header, header.base_offset)


def merge(parts: Sequence[tuple[BatchHeader, memoryview]]) -> bytearray:
    """Merges adjacent batches; finish with `readdress`.

    MalformedBatch for records that contradict their header: merging would change their offsets. ValueError for
    batches that cannot be merged. Costs 2 to 5 µs a record and saves about 130 µs a batch, so it pays below some 25
    records or 8 KiB a batch.
    """
    first = parts[0][0]
    records = bytearray()
    count = 0
    for header, batch in parts:
        if not mergeable(header) or header.base_offset != first.base_offset + count:
            raise ValueError(f"batch at offset {header.base_offset} does not follow as a mergeable one")
        try:
            _append(records, batch[HEADER_SIZE:].tobytes(), header, header.base_timestamp - first.base_timestamp, count)
        except IndexError:
            raise MalformedBatch(f"batch at offset {header.base_offset}: a record ends behind the batch") from None
        count += header.record_count
    latest = max(header.max_timestamp for header, _ in parts)
    return batch_of(records, count, Codec.NONE, first.base_timestamp, latest)


def _append(records: bytearray, data: bytes, header: BatchHeader, later_ms: int, before: int) -> None:
    at = 0
    for number in range(header.record_count):
        size, at = varint(data, at)
        end = at + size
        timestamp_delta, at = varint(data, at + 1)  # skips the unused attributes
        offset_delta, at = varint(data, at)
        if offset_delta != number or not at <= end <= len(data):
            raise MalformedBatch(f"batch at offset {header.base_offset}: record {number} is not where it must be")
        # Overflows like Java's long, so base plus delta stays the timestamp.
        records += record(wrapped(timestamp_delta + later_ms), before + number, data[at:end])
        at = end
    if at != len(data):
        raise MalformedBatch(f"batch at offset {header.base_offset}: {len(data) - at} bytes left after its records")

"""Merges tiny batches of a partition: each costs brokers as much as kilobytes of records.

Only uncompressed ones, whose deltas change without touching keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirror_core.wire.batch import CODEC_MASK, HEADER_SIZE, BatchHeader, MalformedBatch
from mirror_core.wire.encode import build_batch, encode_record
from mirror_core.wire.records import Codec, decode_varint, wrap_int64
from mirror_core.wire.reencode import can_copy_whole


def is_mergeable(header: BatchHeader) -> bool:
    """Dense, uncompressed, with create times, not a control batch."""
    return not header.attributes & CODEC_MASK and can_copy_whole(header, header.base_offset)


def merge_batches(batches: Sequence[tuple[BatchHeader, memoryview]]) -> bytearray:
    """Merges adjacent batches; finish with `readdress`.

    MalformedBatch for records that contradict their header: merging would change their offsets. ValueError for
    batches that cannot be merged. Costs 2 to 5 µs a record and saves about 130 µs a batch, so it pays below some 25
    records or 8 KiB a batch.
    """
    first = batches[0][0]
    records = bytearray()
    count = 0
    for header, batch in batches:
        if not is_mergeable(header) or header.base_offset != first.base_offset + count:
            raise ValueError(f"batch at offset {header.base_offset} does not follow as a mergeable one")
        try:
            _append_records(
                records, batch[HEADER_SIZE:].tobytes(), header, header.base_timestamp - first.base_timestamp, count
            )
        except IndexError:
            raise MalformedBatch(f"batch at offset {header.base_offset}: a record ends behind the batch") from None
        count += header.record_count
    latest = max(header.max_timestamp for header, _ in batches)
    return build_batch(records, count, Codec.NONE, first.base_timestamp, latest)


def _append_records(
    records: bytearray, data: bytes, header: BatchHeader, timestamp_shift_ms: int, offset_shift: int
) -> None:
    position = 0
    for number in range(header.record_count):
        size, position = decode_varint(data, position)
        end = position + size
        timestamp_delta, position = decode_varint(data, position + 1)  # skips the unused attributes
        offset_delta, position = decode_varint(data, position)
        if offset_delta != number or not position <= end <= len(data):
            raise MalformedBatch(f"batch at offset {header.base_offset}: record {number} is not where it must be")
        # Overflows like Java's long, so base plus delta stays the timestamp.
        records += encode_record(
            wrap_int64(timestamp_delta + timestamp_shift_ms), offset_shift + number, data[position:end]
        )
        position = end
    if position != len(data):
        raise MalformedBatch(
            f"batch at offset {header.base_offset}: {len(data) - position} bytes left after its records"
        )

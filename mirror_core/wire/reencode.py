"""Rewrites batches that cannot be copied as they are; merges tiny uncompressed ones.

Brokers append dense batches only (KIP-98: record count = last offset delta + 1). With LogAppendTime records get the
batch's maximum timestamp, which consumers see: the destination recomputes the header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mirror_core.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CURRENT_MAGIC,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    MalformedBatch,
    clear_transaction_bits,
    is_dense,
)
from mirror_core.wire.batch_encoder import build_batch, encode_record
from mirror_core.wire.records import (
    MAX_PLAIN_BYTES,
    Codec,
    PlainBytes,
    decode_varint,
    decompress,
    find_record_spans,
    wrap_int64,
)

_ALWAYS_ADMITTED_BYTES: Final = 16 << 10
"""No topic has a lower max.message.bytes. Larger batches must not grow."""
_UNLIMITED_RECORDS: Final = 1 << 31
MAX_RUN_BYTES: Final = 8 << 20
"""Decompressed, so that no second copy of a batch is made."""
_RUN_OVERHEAD_BYTES: Final = 200


class RecordRun(NamedTuple):
    """Consecutive offsets as one batch; finish it with `readdress`."""

    base_offset: int
    records: int
    batch: bytearray

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


def can_copy_whole(header: BatchHeader, start: int) -> bool:
    """After `clear_transaction_bits`, for a log that ends at `start`."""
    return (
        header.magic == CURRENT_MAGIC
        and is_dense(header)
        and start <= header.base_offset
        and not header.attributes & (CONTROL | LOG_APPEND_TIME)
    )


def split_into_runs(
    header: BatchHeader, batch: memoryview, start: int, limit: int = MAX_PLAIN_BYTES
) -> list[RecordRun]:
    """From `start` on. The caller verified the CRC.

    Control and empty batches give none. Batches that need only header changes are not decompressed. Raises
    MalformedBatch, also above `limit` decompressed bytes.
    """
    if header.magic != CURRENT_MAGIC or header.record_count < 0:
        raise MalformedBatch(
            f"batch at offset {header.base_offset}: magic {header.magic}, {header.record_count} records"
        )
    if header.attributes & CONTROL or not header.record_count or header.last_offset < start:
        return []
    if can_copy_whole(header, start):
        copied = bytearray(batch)
        clear_transaction_bits(memoryview(copied))
        return [RecordRun(header.base_offset, header.record_count, copied)]
    plain = decompress(header.attributes & CODEC_MASK, batch[HEADER_SIZE:], limit)
    return limit_run_sizes(len(batch), limit, lambda max_records: _split_records(header, plain, start, max_records))


def limit_run_sizes(size: int, limit: int, build: Callable[[int], Iterable[RecordRun]]) -> list[RecordRun]:
    """No run is larger than the original batch, so the destination's max.message.bytes accepts it.

    `build` gets the most records per run. MalformedBatch above `limit` bytes in total: a few megabytes could ask for
    millions of runs.
    """
    max_batch_bytes = max(size, _ALWAYS_ADMITTED_BYTES)
    max_records = _UNLIMITED_RECORDS
    while True:
        runs, used_bytes, too_long = [], 0, 0
        for run in build(max_records):
            used_bytes += len(run.batch) + _RUN_OVERHEAD_BYTES
            if used_bytes > limit:
                raise MalformedBatch(f"written anew, the records from offset {run.base_offset} on exceed {limit} bytes")
            if len(run.batch) > max_batch_bytes and run.records > 1:
                too_long = max(too_long, run.records)
            runs.append(run)
        if not too_long:
            return runs
        max_records = (too_long + 1) // 2


def _split_records(header: BatchHeader, plain: PlainBytes, start: int, max_records: int) -> Iterator[RecordRun]:
    """At missing offsets, and by size. Streams: a few megabytes may hold millions of records."""
    has_append_time = header.attributes & LOG_APPEND_TIME
    base = header.max_timestamp if has_append_time else header.base_timestamp
    codec = header.attributes & CODEC_MASK
    first, count, latest, records = 0, 0, base, bytearray()
    for span in find_record_spans(header, plain):
        if header.base_offset + span.offset_delta < start:
            continue
        timestamp = base if has_append_time else wrap_int64(base + span.timestamp_delta)
        if not count or count == max_records or len(records) >= MAX_RUN_BYTES or span.offset_delta != first + count:
            if count:
                yield RecordRun(header.base_offset + first, count, build_batch(records, count, codec, base, latest))
            first, count, latest, records = span.offset_delta, 0, timestamp, bytearray()
        if span.offset_delta == count and not has_append_time:
            records += plain[span.start : span.end]
        else:
            records += encode_record(
                0 if has_append_time else span.timestamp_delta, count, plain[span.content : span.end]
            )
        latest = max(latest, timestamp)
        count += 1
    if count:
        yield RecordRun(header.base_offset + first, count, build_batch(records, count, codec, base, latest))


def is_mergeable(header: BatchHeader) -> bool:
    """Dense, uncompressed, with create times, not a control batch."""
    return not header.attributes & CODEC_MASK and can_copy_whole(header, header.base_offset)


def merge_batches(batches: Sequence[tuple[BatchHeader, memoryview]]) -> bytearray:
    """Adjacent ones; finish with `readdress`.

    MalformedBatch for records that contradict their header: merging would change their offsets. ValueError for batches
    that cannot be merged. Costs 2 to 5 µs a record and saves about 130 µs a batch, so it pays below some 25 records or
    8 KiB a batch.
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

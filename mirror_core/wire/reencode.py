"""Rewrites batches that cannot be copied as they are.

Brokers append dense batches only (KIP-98: record count = last offset delta + 1), so compacted ones are split at
missing offsets. Keys, values, headers stay as bytes, timestamps as consumers see them: with LogAppendTime the
batch's maximum, since the destination recomputes the header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from mirror_core.wire.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NEWEST,
    BatchHeader,
    MalformedBatch,
    clear_bits,
    is_dense,
)
from mirror_core.wire.encode import batch_of, record
from mirror_core.wire.records import PLAIN_LIMIT, Plain, decompress, spans, wrapped

_ALWAYS_ADMITTED: Final = 16 << 10
"""No topic has a lower max.message.bytes. Larger batches must not grow."""
_ANY_NUMBER: Final = 1 << 31
RUN_BYTES: Final = 8 << 20
"""Decompressed bytes per run, so that no second copy of a batch is made."""
_RUN_OVERHEAD: Final = 200


class Run(NamedTuple):
    """Records of consecutive offsets as one batch; finish it with `readdress`."""

    base_offset: int
    records: int
    batch: bytearray

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


def crosses_whole(header: BatchHeader, start: int) -> bool:
    """After `clear_transaction_bits`, for a log that ends at `start`."""
    return (
        header.magic == NEWEST
        and is_dense(header)
        and start <= header.base_offset
        and not header.attributes & (CONTROL | LOG_APPEND_TIME)
    )


def dense_runs(header: BatchHeader, batch: memoryview, start: int, limit: int = PLAIN_LIMIT) -> list[Run]:
    """Records from `start` on. The caller verified the CRC.

    Control and empty batches give none. Batches that need only header changes are not decompressed. Raises
    MalformedBatch, also above `limit` decompressed bytes.
    """
    if header.magic != NEWEST or header.record_count < 0:
        raise MalformedBatch(
            f"batch at offset {header.base_offset}: magic {header.magic}, {header.record_count} records"
        )
    if header.attributes & CONTROL or not header.record_count or header.last_offset < start:
        return []
    if crosses_whole(header, start):
        whole = bytearray(batch)
        clear_bits(memoryview(whole))
        return [Run(header.base_offset, header.record_count, whole)]
    plain = decompress(header.attributes & CODEC_MASK, batch[HEADER_SIZE:], limit)
    return admitted(len(batch), limit, lambda most: _runs(header, plain, start, most))


def admitted(size: int, limit: int, build: Callable[[int], Iterable[Run]]) -> list[Run]:
    """No run is larger than the original batch, so the destination's max.message.bytes accepts it.

    `build` gets the most records per run. Raises MalformedBatch above `limit` bytes in total: a few megabytes could
    ask for millions of runs.
    """
    room = max(size, _ALWAYS_ADMITTED)
    most = _ANY_NUMBER
    while True:
        runs, taken, too_long = [], 0, 0
        for run in build(most):
            taken += len(run.batch) + _RUN_OVERHEAD
            if taken > limit:
                raise MalformedBatch(f"written anew, the records from offset {run.base_offset} on exceed {limit} bytes")
            if len(run.batch) > room and run.records > 1:
                too_long = max(too_long, run.records)
            runs.append(run)
        if not too_long:
            return runs
        most = (too_long + 1) // 2


def _runs(header: BatchHeader, plain: Plain, start: int, most: int) -> Iterator[Run]:
    """Splits at missing offsets, and by size. Streams: a few megabytes may hold millions of records."""
    stamped = header.attributes & LOG_APPEND_TIME
    base = header.max_timestamp if stamped else header.base_timestamp
    codec = header.attributes & CODEC_MASK
    first, count, latest, records = 0, 0, base, bytearray()
    for span in spans(header, plain):
        if header.base_offset + span.offset_delta < start:
            continue
        timestamp = base if stamped else wrapped(base + span.timestamp_delta)
        if not count or count == most or len(records) >= RUN_BYTES or span.offset_delta != first + count:
            if count:
                yield Run(header.base_offset + first, count, batch_of(records, count, codec, base, latest))
            first, count, latest, records = span.offset_delta, 0, timestamp, bytearray()
        if span.offset_delta == count and not stamped:
            records += plain[span.start : span.end]
        else:
            records += record(0 if stamped else span.timestamp_delta, count, plain[span.content : span.end])
        latest = max(latest, timestamp)
        count += 1
    if count:
        yield Run(header.base_offset + first, count, batch_of(records, count, codec, base, latest))

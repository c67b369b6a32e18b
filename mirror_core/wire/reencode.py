"""A batch that cannot cross as it stands becomes batches that can: dense, of no transaction, with the producers' times.

Brokers append dense batches only (KIP-98: record count = last offset delta + 1), so what compaction left of a batch is
split where offsets are missing. Everything from a record's key on is copied as bytes: null and empty, header names
that are no UTF-8, all stay. Visible timestamps stay as well; with LogAppendTime that is the batch's maximum for each
record (the destination could not be told to keep it: it recomputes the header from the records).
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
"""Bytes: no topic has a max.message.bytes below it. Larger batches must not grow beyond their source's."""
_ANY_NUMBER: Final = 1 << 31
RUN_BYTES: Final = 8 << 20
"""Plain bytes after which a run ends: no second copy of all that a batch holds is made."""
_RUN_OVERHEAD: Final = 200
"""Bytes of memory that a run takes besides its batch."""


class Run(NamedTuple):
    """Records of consecutive offsets as one batch, for `readdress` to finish."""

    base_offset: int
    """Of its first record, in the log; in the batch itself stands 0."""
    records: int
    batch: bytearray

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


def crosses_whole(header: BatchHeader, start: int) -> bool:
    """Whether the batch's bytes may cross as they are, after `clear_bits`, for a log that continues at `start`."""
    return (
        header.magic == NEWEST
        and is_dense(header)
        and start <= header.base_offset
        and not header.attributes & (CONTROL | LOG_APPEND_TIME)
    )


def dense_runs(header: BatchHeader, batch: memoryview, start: int, limit: int = PLAIN_LIMIT) -> list[Run]:
    """The records of a batch from offset `start` on, as runs in rising order. The caller has verified the CRC.

    No runs for control batches and for empty ones: no consumer sees a record there. Batches of which only header bits
    have to change are not decompressed. MalformedBatch when the records contradict the header, or take more than
    `limit` bytes decompressed.
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
    """Runs, none larger than the `size` bytes that they came from: the destination's max.message.bytes admits those.

    The source's producer may have compressed harder. `build` gets the most records that a run may hold. MalformedBatch
    when all together take more than `limit` bytes: each run has a header of its own, and a few megabytes may ask for
    millions of runs.
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
    """Split where an offset is missing, and after `most` records or many bytes. Written as they are found: spans are
    not collected, because a batch of a few megabytes can hold millions of records."""
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

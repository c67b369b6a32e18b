"""Reads segment files. Only headers are read, unless a checksum is needed."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mirror_core.model.names import Offset
from mirror_core.wire.batch import CURRENT_MAGIC, BatchHeader, MalformedBatch, crc_matches, split_batches
from mirrorbook_tools.logdir.layout import SNAPSHOT_SUFFIX, LogSegment, NotTruncatable, PartitionLog
from mirrorbook_tools.logdir.producer_snapshot import MalformedSnapshot, parse_open_transactions


class DamagedSegment(NotTruncatable):
    pass


class BatchPosition(NamedTuple):
    header: BatchHeader
    batch: memoryview
    end_position: int


def iterate_batches(segment: LogSegment) -> Iterator[BatchPosition]:
    """Raises DamagedSegment, also for an incomplete batch."""
    position, lowest, size = 0, segment.base, segment.path.stat().st_size
    try:
        for header, batch in split_batches(_map_file(segment)):
            if header.base_offset < lowest or header.next_offset <= header.base_offset:
                raise MalformedBatch(f"a batch of offsets {header.base_offset} to {header.last_offset} behind {lowest}")
            position += len(batch)
            lowest = Offset(header.next_offset)
            yield BatchPosition(header, batch, position)
    except MalformedBatch as error:
        raise DamagedSegment(f"{segment.path} is damaged at byte {position}: {error}") from None
    if position < size:
        raise DamagedSegment(f"{segment.path}: from byte {position} on {size - position} bytes are no whole batch")


def iterate_headers(segments: Sequence[LogSegment], *, torn_end: bool) -> Iterator[BatchHeader]:
    """`torn_end`: a killed broker's log may end with damage."""
    for number, segment in enumerate(segments, start=1):
        try:
            for batch_position in iterate_batches(segment):
                yield batch_position.header
        except DamagedSegment:
            if torn_end and number == len(segments):
                return
            raise


def find_log_end(log: PartitionLog) -> Offset:
    """As the broker would find it."""
    end = log.segments[-1].base
    for header in iterate_headers(log.segments[-1:], torn_end=not log.has_clean_shutdown):
        end = Offset(header.next_offset)
    return end


def read_open_transactions(log: PartitionLog, offset: Offset) -> Mapping[int, Offset] | None:
    """By the producer snapshot. None: no readable one."""
    try:
        first_offsets = parse_open_transactions((log.folder / f"{offset:020d}{SNAPSHOT_SUFFIX}").read_bytes())
    except (FileNotFoundError, MalformedSnapshot):
        return None
    return {producer: Offset(first) for producer, first in first_offsets.items()}


def find_end_position(segment: LogSegment, offset: Offset) -> int:
    """Raises DamagedSegment inside a batch, and for a wrong checksum below."""
    position, end = 0, segment.base
    for header, batch, batch_end in iterate_batches(segment):
        if header.next_offset > offset:
            break
        if header.magic not in (0, 1) and not (header.magic == CURRENT_MAGIC and crc_matches(header, batch)):
            raise DamagedSegment(
                f"{segment.path}: the batch at offset {header.base_offset} is damaged: its magic or CRC is wrong"
            )
        position, end = batch_end, Offset(header.next_offset)
    if end != offset:
        raise DamagedSegment(f"{segment.path} holds no batch that ends at offset {offset}")
    return position


def _map_file(segment: LogSegment) -> memoryview:
    with segment.path.open("rb") as log:
        size = segment.path.stat().st_size
        return memoryview(mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")

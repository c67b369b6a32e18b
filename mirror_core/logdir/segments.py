"""Reads segment files. Only headers are read, unless a checksum is needed."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mirror_core.logdir.layout import SNAPSHOT, PartitionLog, Segment, Unfit
from mirror_core.model.names import Offset
from mirror_core.wire.batch import NEWEST, BatchHeader, MalformedBatch, batches, crc_matches
from mirror_core.wire.snapshot import MalformedSnapshot, open_transactions


class Damaged(Unfit):
    pass


class Placed(NamedTuple):
    header: BatchHeader
    batch: memoryview
    end: int


def walk(segment: Segment) -> Iterator[Placed]:
    """Raises DamagedSegment, also for an incomplete batch."""
    at, lowest, size = 0, segment.base, segment.path.stat().st_size
    try:
        for header, batch in batches(_mapped(segment)):
            if header.base_offset < lowest or header.next_offset <= header.base_offset:
                raise MalformedBatch(f"a batch of offsets {header.base_offset} to {header.last_offset} behind {lowest}")
            at += len(batch)
            lowest = Offset(header.next_offset)
            yield Placed(header, batch, at)
    except MalformedBatch as error:
        raise Damaged(f"{segment.path} is damaged at byte {at}: {error}") from None
    if at < size:
        raise Damaged(f"{segment.path}: from byte {at} on {size - at} bytes are no whole batch")


def headers(segments: Sequence[Segment], *, torn_end: bool) -> Iterator[BatchHeader]:
    """`torn_end`: a killed broker's log may end with damage."""
    for number, segment in enumerate(segments, start=1):
        try:
            for placed in walk(segment):
                yield placed.header
        except Damaged:
            if torn_end and number == len(segments):
                return
            raise


def log_end(log: PartitionLog) -> Offset:
    """As the broker would find it."""
    end = log.segments[-1].base
    for header in headers(log.segments[-1:], torn_end=not log.clean):
        end = Offset(header.next_offset)
    return end


def open_at(log: PartitionLog, offset: Offset) -> Mapping[int, Offset] | None:
    """By the producer snapshot. None: no readable one."""
    try:
        found = open_transactions((log.folder / f"{offset:020d}{SNAPSHOT}").read_bytes())
    except (FileNotFoundError, MalformedSnapshot):
        return None
    return {producer: Offset(first) for producer, first in found.items()}


def place_of(segment: Segment, offset: Offset) -> int:
    """Raises DamagedSegment inside a batch, and for a wrong checksum below."""
    at, end = 0, segment.base
    for header, batch, behind in walk(segment):
        if header.next_offset > offset:
            break
        if header.magic not in (0, 1) and not (header.magic == NEWEST and crc_matches(header, batch)):
            raise Damaged(
                f"{segment.path}: the batch at offset {header.base_offset} is damaged: its magic or CRC is wrong"
            )
        at, end = behind, Offset(header.next_offset)
    if end != offset:
        raise Damaged(f"{segment.path} holds no batch that ends at offset {offset}")
    return at


def _mapped(segment: Segment) -> memoryview:
    with segment.path.open("rb") as log:
        size = segment.path.stat().st_size
        return memoryview(mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")

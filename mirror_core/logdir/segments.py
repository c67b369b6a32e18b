"""Segment files, batch by batch. Only headers are read from the disk, unless a checksum is asked for."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mirror_core.logdir.layout import SNAPSHOT, PartitionLog, Segment, Unfit
from mirror_core.model.names import Offset
from mirror_core.wire.batch import NEWEST, BatchHeader, MalformedBatch, batches, crc_matches
from mirror_core.wire.snapshot import MalformedSnapshot, open_transactions


class Damaged(Unfit):
    """A segment does not go on as a log does."""


class Placed(NamedTuple):
    """A batch, and where it ends in its file."""

    header: BatchHeader
    batch: memoryview
    end: int


def walk(segment: Segment) -> Iterator[Placed]:
    """All batches of a segment. Damaged where something else follows, such as a part of a batch."""
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
    """Of several segments, one after the other. `torn_end`: the log of a broker that was killed ends before damage."""
    for number, segment in enumerate(segments, start=1):
        try:
            for placed in walk(segment):
                yield placed.header
        except Damaged:
            if torn_end and number == len(segments):
                return
            raise


def log_end(log: PartitionLog) -> Offset:
    """The log end that the broker would find."""
    end = log.segments[-1].base
    for header in headers(log.segments[-1:], torn_end=not log.clean):
        end = Offset(header.next_offset)
    return end


def open_at(log: PartitionLog, offset: Offset) -> Mapping[int, Offset] | None:
    """Which transactions were open there, by the broker's own notes. None when it left none that can be read."""
    try:
        found = open_transactions((log.folder / f"{offset:020d}{SNAPSHOT}").read_bytes())
    except (FileNotFoundError, MalformedSnapshot):
        return None
    return {producer: Offset(first) for producer, first in found.items()}


def place_of(segment: Segment, offset: Offset) -> int:
    """The byte at which the log ends at this offset. Damaged when it is not where a batch ends, or a checksum of what
    stays does not match."""
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

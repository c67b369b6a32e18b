"""WriteTxnMarkers v1 (KIP-98): control records that fill offsets without records.

Each marker takes one offset, even without an open transaction, and no consumer sees it. Needs CLUSTER_ACTION or
ALTER on the cluster, no topic right.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from mirror_core.model.names import Partition
from mirror_core.wire.fields import NO_TAGS, Reader, compact_count, compact_string, flexible_request_header

API_KEY: Final = 27
VERSION: Final = 1

_ENTRY: Final = struct.Struct(">qhb")
_INT32: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">q")
_ROW: Final = struct.Struct(">ih")
_ABORT: Final = 0


class Entry(NamedTuple):
    """One marker per partition. Repeat the entry for more."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    partitions: tuple[Partition, ...]


class Written(NamedTuple):
    producer_id: int
    topic: str
    partition: int
    error: int


def encode(entries: Iterable[Entry], correlation: int, client_id: str) -> bytes:
    """ValueError for a repeated partition in one entry: brokers would never respond (seen on 4.3.1)."""
    parts: list[bytes] = []
    before, encoded = None, b""
    for entry in entries:
        if entry is not before:  # gaps repeat an entry thousands of times
            before, encoded = entry, _entry(entry)
        parts.append(encoded)
    head = flexible_request_header(API_KEY, VERSION, correlation, client_id)
    return b"".join((head, compact_count(len(parts)), *parts, NO_TAGS))


def _entry(entry: Entry) -> bytes:
    if len(set(entry.partitions)) != len(entry.partitions):
        raise ValueError("a partition twice in one entry of WriteTxnMarkers")
    ordered = sorted(entry.partitions, key=lambda partition: partition.topic)
    topics = [(topic, [p.index for p in group]) for topic, group in groupby(ordered, key=lambda p: p.topic)]
    parts = [_ENTRY.pack(entry.producer_id, entry.producer_epoch, _ABORT), compact_count(len(topics))]
    for topic, indexes in topics:
        parts += [compact_string(topic), compact_count(len(indexes))]
        parts += [_INT32.pack(index) for index in indexes]
        parts.append(NO_TAGS)
    parts += [_INT32.pack(entry.coordinator_epoch), NO_TAGS]
    return b"".join(parts)


def decode(frame: memoryview) -> Iterator[Written]:
    """Rows of a response (after its correlation id).

    Brokers merge repeated entries of a producer into one row per partition, which may hide an error: only the log
    end tells how many markers were appended.
    """
    reader = Reader(frame)
    reader.skip_tags()
    for _ in range(reader.compact_count(_PRODUCER.size + 2)):
        (producer_id,) = reader.unpack(_PRODUCER)
        for _ in range(reader.compact_count(3)):
            topic = reader.compact_string()
            for _ in range(reader.compact_count(_ROW.size + 1)):
                index, error = reader.unpack(_ROW)
                reader.skip_tags()
                yield Written(producer_id, topic, index, error)
            reader.skip_tags()
        reader.skip_tags()
    reader.skip_tags()

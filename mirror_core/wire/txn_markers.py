"""WriteTxnMarkers v1 (KIP-98): control records that fill offsets.

Each takes one offset, even without an open transaction, and no consumer sees it. Needs CLUSTER_ACTION or ALTER on the
cluster.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, NamedTuple

from mirror_core.model.names import Partition
from mirror_core.wire.fields import (
    NO_TAGS,
    ResponseReader,
    encode_compact_count,
    encode_compact_string,
    encode_flexible_request_header,
)

API_KEY: Final = 27
VERSION: Final = 1

_ENTRY: Final = struct.Struct(">qhb")
_INT32: Final = struct.Struct(">i")
_PRODUCER: Final = struct.Struct(">q")
_RESPONSE_PARTITION: Final = struct.Struct(">ih")
_ABORT: Final = 0


class MarkerEntry(NamedTuple):
    """One marker per partition. Repeat the entry for more."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    partitions: tuple[Partition, ...]


class MarkerResult(NamedTuple):
    producer_id: int
    topic: str
    partition: int
    error: int


def encode_request(entries: Iterable[MarkerEntry], correlation: int, client_id: str) -> bytes:
    """ValueError for a repeated partition in one entry: brokers would never respond (seen on 4.3.1)."""
    parts: list[bytes] = []
    previous_entry, encoded = None, b""
    for entry in entries:
        if entry is not previous_entry:  # gaps repeat an entry thousands of times
            previous_entry, encoded = entry, _encode_entry(entry)
        parts.append(encoded)
    head = encode_flexible_request_header(API_KEY, VERSION, correlation, client_id)
    return b"".join((head, encode_compact_count(len(parts)), *parts, NO_TAGS))


def _encode_entry(entry: MarkerEntry) -> bytes:
    if len(set(entry.partitions)) != len(entry.partitions):
        raise ValueError("a partition twice in one entry of WriteTxnMarkers")
    ordered = sorted(entry.partitions, key=lambda partition: partition.topic)
    topics = [(topic, [p.index for p in group]) for topic, group in groupby(ordered, key=lambda p: p.topic)]
    parts = [_ENTRY.pack(entry.producer_id, entry.producer_epoch, _ABORT), encode_compact_count(len(topics))]
    for topic, indexes in topics:
        parts += [encode_compact_string(topic), encode_compact_count(len(indexes))]
        parts += [_INT32.pack(index) for index in indexes]
        parts.append(NO_TAGS)
    parts += [_INT32.pack(entry.coordinator_epoch), NO_TAGS]
    return b"".join(parts)


def decode_response(frame: memoryview) -> Iterator[MarkerResult]:
    """`frame`: after the correlation id.

    Brokers merge repeated entries of a producer into one row per partition, which may hide an error: only the log end
    tells how many markers were appended.
    """
    reader = ResponseReader(frame)
    reader.skip_tags()
    for _ in range(reader.read_compact_count(_PRODUCER.size + 2)):
        (producer_id,) = reader.unpack(_PRODUCER)
        for _ in range(reader.read_compact_count(3)):
            topic = reader.read_compact_string()
            for _ in range(reader.read_compact_count(_RESPONSE_PARTITION.size + 1)):
                index, error = reader.unpack(_RESPONSE_PARTITION)
                reader.skip_tags()
                yield MarkerResult(producer_id, topic, index, error)
            reader.skip_tags()
        reader.skip_tags()
    reader.skip_tags()

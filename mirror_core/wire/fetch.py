"""Fetch v10 (brokers 2.1 to 4.x). Records are views.

From v11 on a leader may name another replica instead of records (KIP-392): it may lag, and the response looks like an
empty log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from mirror_core.model.names import Partition
from mirror_core.wire.fields import ResponseReader, encode_request_header, encode_string

API_KEY: Final = 1
VERSION: Final = 10

_REQUEST: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiqqi")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_COUNT: Final = struct.Struct(">i")
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


class IsolationLevel(IntEnum):
    """READ_COMMITTED ends at the last stable offset, but returns aborted and control batches."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FetchPosition(NamedTuple):
    partition: Partition
    offset: int
    leader_epoch: int = -1


class FetchedPartition(NamedTuple):
    partition: Partition
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: tuple[tuple[int, int], ...]
    records: memoryview


def encode_request(
    positions: Iterable[FetchPosition],
    correlation: int,
    client_id: str,
    *,
    isolation: IsolationLevel,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
) -> bytes:
    topics: dict[str, list[FetchPosition]] = {}
    for item in positions:
        topics.setdefault(item.partition.topic, []).append(item)
    parts = [
        encode_request_header(API_KEY, VERSION, correlation, client_id),
        _REQUEST.pack(-1, max_wait_ms, 1, max_bytes, isolation, 0, -1),
        _COUNT.pack(len(topics)),
    ]
    for topic, items in topics.items():
        parts += [encode_string(topic), _COUNT.pack(len(items))]
        parts += [_PARTITION.pack(i.partition.index, i.leader_epoch, i.offset, -1, partition_max_bytes) for i in items]
    parts.append(_COUNT.pack(0))  # no forgotten topics
    return b"".join(parts)


def decode_response(frame: memoryview, partitions: Mapping[tuple[str, int], Partition]) -> Iterator[FetchedPartition]:
    """`frame`: after the correlation id. An error of the whole response is repeated for each partition."""
    reader = ResponseReader(frame)
    _, error, _ = reader.unpack(_RESPONSE_HEAD)
    topics = reader.read_count(6)
    if error:
        for partition in partitions.values():
            yield FetchedPartition(partition, error, -1, -1, -1, (), frame[:0])
        return
    for _ in range(topics):
        topic = reader.read_string()
        for _ in range(reader.read_count(_RESPONSE_PARTITION.size + 8)):
            index, code, high_watermark, last_stable, log_start = reader.unpack(_RESPONSE_PARTITION)
            aborted = tuple(
                (pair[0], pair[1])
                for pair in (reader.unpack(_ABORTED) for _ in range(reader.read_count(_ABORTED.size)))
            )
            (size,) = reader.unpack(_COUNT)
            records = reader.read_view(size)
            partition = partitions.get((topic, index)) or Partition(topic, index)
            yield FetchedPartition(partition, code, high_watermark, last_stable, log_start, aborted, records)

"""Fetch v10 (brokers 2.1 to 4.x). Records are views.

From v11 on a leader may name another replica instead of records (KIP-392): it may lag, and the response looks like
an empty log. v10 always reads from the leader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from mirror_core.model.names import Partition
from mirror_core.wire.fields import Reader, request_header, string

API_KEY: Final = 1
VERSION: Final = 10

_REQUEST: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiqqi")
_ANSWER: Final = struct.Struct(">ihi")
_COUNT: Final = struct.Struct(">i")
_ANSWER_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")


class Isolation(IntEnum):
    """READ_COMMITTED ends at the last stable offset, but returns aborted and control batches."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Wanted(NamedTuple):
    partition: Partition
    offset: int
    leader_epoch: int = -1


class Fetched(NamedTuple):
    partition: Partition
    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


def encode(
    wanted: Iterable[Wanted],
    correlation: int,
    client_id: str,
    *,
    isolation: Isolation,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
) -> bytes:
    topics: dict[str, list[Wanted]] = {}
    for item in wanted:
        topics.setdefault(item.partition.topic, []).append(item)
    parts = [
        request_header(API_KEY, VERSION, correlation, client_id),
        _REQUEST.pack(-1, max_wait_ms, 1, max_bytes, isolation, 0, -1),
        _COUNT.pack(len(topics)),
    ]
    for topic, items in topics.items():
        parts += [string(topic), _COUNT.pack(len(items))]
        parts += [_PARTITION.pack(i.partition.index, i.leader_epoch, i.offset, -1, partition_max_bytes) for i in items]
    parts.append(_COUNT.pack(0))  # no forgotten topics
    return b"".join(parts)


def decode(frame: memoryview, known: Mapping[tuple[str, int], Partition]) -> Iterator[Fetched]:
    """Partitions of a response (after its correlation id). An error of the whole response is repeated for
    each."""
    reader = Reader(frame)
    _, error, _ = reader.unpack(_ANSWER)
    topics = reader.count(6)
    if error:
        for partition in known.values():
            yield Fetched(partition, error, -1, -1, -1, (), frame[:0])
        return
    for _ in range(topics):
        topic = reader.string()
        for _ in range(reader.count(_ANSWER_PARTITION.size + 8)):
            index, code, high_watermark, last_stable, log_start = reader.unpack(_ANSWER_PARTITION)
            aborted = tuple(
                (pair[0], pair[1]) for pair in (reader.unpack(_ABORTED) for _ in range(reader.count(_ABORTED.size)))
            )
            (size,) = reader.unpack(_COUNT)
            records = reader.view(size)
            partition = known.get((topic, index)) or Partition(topic, index)
            yield Fetched(partition, code, high_watermark, last_stable, log_start, aborted, records)

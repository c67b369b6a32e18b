"""Fetch v10 (brokers 2.1 to 4.x), and v13 by topic id (3.1). Records are views.

From v11 on a leader may name another replica instead of records (KIP-392): it may lag, and the response looks like an
empty log. A follower responds, too, unless the leader epoch is fenced.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from mirror_core.model.names import Partition
from mirror_core.wire.fields import (
    NO_TAGS,
    TOPIC_ID_BYTES,
    MalformedResponse,
    ResponseReader,
    encode_compact_count,
    encode_compact_string,
    encode_flexible_request_header,
    encode_request_header,
    encode_string,
)

API_KEY: Final = 1
VERSION: Final = 10
VERSION_BY_ID: Final = 13

_REQUEST: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiqqi")
_PARTITION_BY_ID: Final = struct.Struct(">iiqiqix")
_RESPONSE_HEAD: Final = struct.Struct(">ihi")
_COUNT: Final = struct.Struct(">i")
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqq")
_EMPTY_PARTITION: Final = struct.Struct(">ihqqqBiBB")
"""With compact lengths of aborted transactions and records (0: null, 1: none), and a count of tags."""
_ABORTED: Final = struct.Struct(">qq")


class IsolationLevel(IntEnum):
    """READ_COMMITTED ends at the last stable offset, but returns aborted and control batches."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FetchPosition(NamedTuple):
    partition: Partition
    offset: int
    leader_epoch: int = -1
    topic_id: bytes = b""


class FetchedPartition(NamedTuple):
    partition: Partition
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: tuple[tuple[int, int], ...]
    records: memoryview
    preferred_replica: int = -1


def encode_request(
    positions: Iterable[FetchPosition],
    correlation: int,
    client_id: str,
    *,
    isolation: IsolationLevel,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    by_id: bool = False,
) -> bytes:
    """`by_id`: only if `can_use_ids`."""
    topics: dict[str | bytes, list[FetchPosition]] = {}
    for item in positions:
        topics.setdefault(item.topic_id if by_id else item.partition.topic, []).append(item)
    settings = _REQUEST.pack(-1, max_wait_ms, 1, max_bytes, isolation, 0, -1)
    if by_id:
        header = encode_flexible_request_header(API_KEY, VERSION_BY_ID, correlation, client_id)
        parts = [header, settings, encode_compact_count(len(topics))]
    else:
        parts = [encode_request_header(API_KEY, VERSION, correlation, client_id), settings, _COUNT.pack(len(topics))]
    for topic, items in topics.items():
        if isinstance(topic, bytes):
            parts += [topic, encode_compact_count(len(items))]
            parts += [
                _PARTITION_BY_ID.pack(i.partition.index, i.leader_epoch, i.offset, -1, -1, partition_max_bytes)
                for i in items
            ]
            parts.append(NO_TAGS)
        else:
            parts += [encode_string(topic), _COUNT.pack(len(items))]
            parts += [
                _PARTITION.pack(i.partition.index, i.leader_epoch, i.offset, -1, partition_max_bytes) for i in items
            ]
    # No forgotten topics, no rack.
    parts.append(encode_compact_count(0) + encode_compact_string("") + NO_TAGS if by_id else _COUNT.pack(0))
    return b"".join(parts)


def can_use_ids(positions: Sequence[FetchPosition]) -> bool:
    return bool(positions) and all(item.topic_id and item.leader_epoch >= 0 for item in positions)


def decode_response(frame: memoryview, partitions: Mapping[tuple[str, int], Partition]) -> Iterator[FetchedPartition]:
    """`frame`: after the header. An error of the whole response is repeated for each partition."""
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


def decode_response_by_id(
    frame: memoryview, partitions: Mapping[tuple[bytes, int], Partition]
) -> Iterator[FetchedPartition]:
    """v13."""
    reader = ResponseReader(frame)
    _, error, _ = reader.unpack(_RESPONSE_HEAD)
    topics = reader.read_compact_count(TOPIC_ID_BYTES + 2)
    if error:
        for requested in partitions.values():
            yield FetchedPartition(requested, error, -1, -1, -1, (), frame[:0])
        return
    for _ in range(topics):
        topic_id = bytes(reader.read_view(TOPIC_ID_BYTES))
        for _ in range(reader.read_compact_count(_EMPTY_PARTITION.size)):
            start = reader.position
            index, code, high_watermark, last_stable, log_start, aborted_count, replica, size, tags = reader.unpack(
                _EMPTY_PARTITION
            )
            if (partition := partitions.get((topic_id, index))) is None:
                raise MalformedResponse(f"partition {index} of topic id {topic_id.hex()} was not asked for")
            aborted, records = tuple[tuple[int, int], ...](), frame[:0]
            if aborted_count > 1 or size > 1 or tags:  # not an idle partition
                reader.position = start + _RESPONSE_PARTITION.size
                aborted = tuple(_read_aborted(reader) for _ in range(reader.read_compact_count(_ABORTED.size + 1)))
                (replica,) = reader.unpack(_COUNT)
                records = reader.read_view(reader.read_uvarint() - 1)
                reader.skip_tags()
            yield FetchedPartition(partition, code, high_watermark, last_stable, log_start, aborted, records, replica)
        reader.skip_tags()


def _read_aborted(reader: ResponseReader) -> tuple[int, int]:
    producer_id, first_offset = reader.unpack(_ABORTED)
    reader.skip_tags()
    return producer_id, first_offset

"""Produce v8 (brokers 2.4 to 4.x), and v13 by topic id (4.1). Errors name the record."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from mirror_core.wire.fields import (
    NO_TAGS,
    TOPIC_ID_BYTES,
    MalformedResponse,
    ResponseReader,
    encode_compact_count,
    encode_flexible_request_header,
    encode_request_header,
    encode_string,
)

API_KEY: Final = 0
VERSION: Final = 8
VERSION_BY_ID: Final = 13

_NO_TRANSACTIONAL_ID: Final = struct.pack(">h", -1)
_REQUEST: Final = struct.Struct(">hii")
_PARTITION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqih")
"""Partition, error, base offset, append time, log start, record error count, message length."""
_MESSAGES_POSITION: Final = 30
_NO_COMPACT_TRANSACTIONAL_ID: Final = b"\0"
_SETTINGS: Final = struct.Struct(">hi")
_RESPONSE_PARTITION_BY_ID: Final = struct.Struct(">ihqqq")
_NO_MESSAGES: Final = b"\1\0\0"
"""No record errors, no message, no tags."""


class ProducedPartition(NamedTuple):
    topic: str
    partition: int
    error: int
    base_offset: int
    """First record's; for a duplicate, the original's."""
    message: str
    append_time: int = -1
    """Milliseconds that the broker set as the records' time. -1: unchanged."""


def encode_request(
    rows: Sequence[tuple[str, int, memoryview]],
    correlation: int,
    client_id: str,
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[bytes | memoryview]:
    """acks=-1. Rows: (topic, partition, one batch); rows of a topic must be adjacent."""
    parts: list[bytes | memoryview] = [encode_request_header(API_KEY, VERSION, correlation, client_id), b""]
    topics, start = 0, 0
    while start < len(rows):
        topic = rows[start][0]
        end = start
        while end < len(rows) and rows[end][0] == topic:
            end += 1
        topics += 1
        parts.append(encode_string(topic) + _COUNT.pack(end - start))
        for _, index, batch in rows[start:end]:
            parts += (_PARTITION.pack(index, len(batch)), batch)
        start = end
    encoded_id = _NO_TRANSACTIONAL_ID if transactional_id is None else encode_string(transactional_id)
    parts[1] = encoded_id + _REQUEST.pack(-1, timeout_ms, topics)  # acks=all
    return parts


def encode_request_by_id(
    rows: Sequence[tuple[bytes, int, memoryview]], correlation: int, client_id: str, *, timeout_ms: int
) -> list[bytes | memoryview]:
    """v13; rows: (topic id, partition, one batch)."""
    topics = [(topic_id, list(group)) for topic_id, group in groupby(rows, itemgetter(0))]
    parts: list[bytes | memoryview] = []
    head = encode_flexible_request_header(API_KEY, VERSION_BY_ID, correlation, client_id)
    head += _NO_COMPACT_TRANSACTIONAL_ID + _SETTINGS.pack(-1, timeout_ms) + encode_compact_count(len(topics))
    for topic_id, group in topics:
        head += topic_id + encode_compact_count(len(group))
        for _, index, batch in group:
            parts += (head + _COUNT.pack(index) + encode_compact_count(len(batch)), batch)
            head = NO_TAGS
        head += NO_TAGS
    parts.append(head + NO_TAGS)
    return parts


def decode_response(frame: memoryview) -> Iterator[ProducedPartition]:
    """`frame`: after the header. Rows in the broker's order."""
    reader = ResponseReader(frame)
    for _ in range(reader.read_count(6)):
        topic = reader.read_string()
        for _ in range(reader.read_count(_RESPONSE_PARTITION.size)):
            start = reader.position
            index, error, base_offset, append_time, _, record_errors, length = reader.unpack(_RESPONSE_PARTITION)
            if record_errors <= 0 and length < 0:  # nearly always
                yield ProducedPartition(topic, index, error, base_offset, "", append_time)
                continue
            reader.position = start + _MESSAGES_POSITION
            messages = []
            for _ in range(reader.read_count(6)):
                reader.unpack(_COUNT)
                messages.append(reader.read_string())
            messages.append(reader.read_string())
            yield ProducedPartition(topic, index, error, base_offset, "; ".join(m for m in messages if m))


def decode_response_by_id(frame: memoryview, topics: Mapping[bytes, str]) -> tuple[list[ProducedPartition], int]:
    """v13; with the throttle time, which tags follow."""
    reader, rows = ResponseReader(frame), list[ProducedPartition]()
    for _ in range(reader.read_compact_count(TOPIC_ID_BYTES + 2)):
        topic_id = bytes(reader.read_view(TOPIC_ID_BYTES))
        if (topic := topics.get(topic_id)) is None:
            raise MalformedResponse(f"topic id {topic_id.hex()} was not in the request")
        for _ in range(reader.read_compact_count(_RESPONSE_PARTITION_BY_ID.size + len(_NO_MESSAGES))):
            index, error, base_offset, append_time, _ = reader.unpack(_RESPONSE_PARTITION_BY_ID)
            rows.append(ProducedPartition(topic, index, error, base_offset, _read_messages(reader), append_time))
        reader.skip_tags()
    (throttle_ms,) = reader.unpack(_COUNT)
    reader.skip_tags()
    return rows, max(0, throttle_ms)


def _read_messages(reader: ResponseReader) -> str:
    if bytes(reader.data[reader.position : reader.position + len(_NO_MESSAGES)]) == _NO_MESSAGES:  # nearly always
        reader.position += len(_NO_MESSAGES)
        return ""
    messages = []
    for _ in range(reader.read_compact_count(_COUNT.size + 2)):
        reader.unpack(_COUNT)
        messages.append(reader.read_compact_string())
        reader.skip_tags()
    messages.append(reader.read_compact_string())
    reader.skip_tags()
    return "; ".join(message for message in messages if message)


def read_throttle_ms(frame: memoryview) -> int:
    """From the response's end: how long the broker stops reading this connection (KIP-219)."""
    return max(0, *ResponseReader(frame[-_COUNT.size :]).unpack(_COUNT))

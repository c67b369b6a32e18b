"""Produce v8 (brokers 2.4 to 4.x). Its errors name the record."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mirror_core.wire.fields import ResponseReader, encode_request_header, encode_string

API_KEY: Final = 0
VERSION: Final = 8

_NO_TRANSACTIONAL_ID: Final = struct.pack(">h", -1)
_REQUEST: Final = struct.Struct(">hii")
_PARTITION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqih")
"""Partition, error, base offset, append time, log start, record error count, message length."""
_MESSAGES_POSITION: Final = 30


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


def decode_response(frame: memoryview) -> Iterator[ProducedPartition]:
    """`frame`: after the correlation id. Rows in the broker's order."""
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


def read_throttle_ms(frame: memoryview) -> int:
    """From the response's end: how long the broker stops reading this connection (KIP-219)."""
    return max(0, *ResponseReader(frame[-_COUNT.size :]).unpack(_COUNT))

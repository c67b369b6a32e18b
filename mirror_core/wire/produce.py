"""Produce v8: topic names, not flexible, errors with the offending record; offered by brokers from 2.4 to 4.x."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mirror_core.wire.fields import Reader, request_header, string

API_KEY: Final = 0
VERSION: Final = 8

_NOBODY: Final = struct.pack(">h", -1)
"""No transactional id."""
_REQUEST: Final = struct.Struct(">hii")
_PARTITION: Final = struct.Struct(">ii")
_COUNT: Final = struct.Struct(">i")
_ANSWER: Final = struct.Struct(">ihqqqih")
"""Partition, error, base offset, append time, log start, number of record errors, length of the message."""
_BEFORE_MESSAGES: Final = 30


class Produced(NamedTuple):
    """One partition of an answer."""

    topic: str
    partition: int
    error: int
    base_offset: int
    """The offset that the batch's first record got; of the earlier one, when the broker took it for a duplicate."""
    message: str
    """The broker's own words, often empty."""
    append_time: int = -1
    """Milliseconds: the time that the broker gave to the batch's records instead of their own; -1: they kept it."""


def encode(
    rows: Sequence[tuple[str, int, memoryview]],
    correlation: int,
    client_id: str,
    *,
    timeout_ms: int,
    by: str | None = None,
) -> list[bytes | memoryview]:
    """A request with acks=-1 as a list of buffers; each row is (topic, partition, one batch): the broker takes no more.

    Rows of one topic must be neighbours. `by`: the transactional id whose transaction the batches are of.
    """
    parts: list[bytes | memoryview] = [request_header(API_KEY, VERSION, correlation, client_id), b""]
    topics, start = 0, 0
    while start < len(rows):
        topic = rows[start][0]
        end = start
        while end < len(rows) and rows[end][0] == topic:
            end += 1
        topics += 1
        parts.append(string(topic) + _COUNT.pack(end - start))
        for _, index, batch in rows[start:end]:
            parts += (_PARTITION.pack(index, len(batch)), batch)
        start = end
    owner = _NOBODY if by is None else string(by)
    parts[1] = owner + _REQUEST.pack(-1, timeout_ms, topics)  # acks of all in-sync replicas
    return parts


def decode(frame: memoryview) -> Iterator[Produced]:
    """The rows of an answer (after its correlation id), in the broker's order, which is not the request's."""
    reader = Reader(frame)
    for _ in range(reader.count(6)):
        topic = reader.string()
        for _ in range(reader.count(_ANSWER.size)):
            start = reader.position
            index, error, base_offset, append_time, _, problems, length = reader.unpack(_ANSWER)
            if problems <= 0 and length < 0:  # nearly always: nobody complains
                yield Produced(topic, index, error, base_offset, "", append_time)
                continue
            reader.position = start + _BEFORE_MESSAGES
            messages = []
            for _ in range(reader.count(6)):
                reader.unpack(_COUNT)
                messages.append(reader.string())
            messages.append(reader.string())
            yield Produced(topic, index, error, base_offset, "; ".join(m for m in messages if m))


def throttle_ms(frame: memoryview) -> int:
    """The end of an answer: for so long the broker reads nothing more from this connection (KIP-219)."""
    return max(0, *Reader(frame[-_COUNT.size :]).unpack(_COUNT))

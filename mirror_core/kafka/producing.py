"""Produces to one destination broker: pipelined requests, responses in order."""

from __future__ import annotations

import math
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from mirror_core.kafka.connection import CLIENT_ID, Connection, frame_size
from mirror_core.kafka.sockets import framed
from mirror_core.kafka.window import LEAST_WINDOW, Window
from mirror_core.model.errors import RemoteFault
from mirror_core.wire import produce
from mirror_core.wire.fields import MalformedAnswer

REQUEST_TIMEOUT_MS = 30_000
"""Socket timeouts are longer, so the broker's response comes first."""

_ANSWERS_BYTES: Final = 64 << 10
"""Fits into socket buffers: a broker waiting for us to read must not stop reading."""
_ANSWER_BYTES: Final = 16
_TOPIC_BYTES: Final = 6
_ROW_BYTES: Final = 30

Tag = TypeVar("Tag")


class Row(NamedTuple, Generic[Tag]):
    """`tag` returns with the response."""

    topic: str
    partition: int
    batch: memoryview
    tag: Tag


class _Due(NamedTuple, Generic[Tag]):
    correlation: int
    tags: dict[tuple[str, int], Tag]
    size: int
    answer_size: int
    sent_at: float


class ProduceLink(Generic[Tag]):
    """A broker handles a connection's requests in order, at any pipeline depth."""

    def __init__(self, connection: Connection, *, most_bytes: int = LEAST_WINDOW) -> None:
        """In flight; the window is mostly smaller."""
        self.connection = connection
        self.outstanding: deque[_Due[Tag]] = deque()
        self.took_s = 0.0
        """Of the newest answered request."""
        self.throttle_s = 0.0
        """Quota: the broker reads nothing this long after its newest response."""
        self.throttled_s = 0.0
        self._window = Window(connection.round_trip_s, most_bytes)
        self._bytes = self._answers_bytes = 0
        self._unsent = memoryview(b"")
        self._moved_at = self._heard_at = -math.inf
        self._buffer = bytearray(1 << 18)
        self._start = self._end = 0

    def send(self, rows: Sequence[Row[Tag]], patience_s: float = 0.0) -> None:
        """Unless `is_full`. Batches may be overwritten afterwards: unsent bytes are copied."""
        if not self.outstanding:
            self.connection.renew_session()
        correlation = self.connection.next_id()
        parts = produce.encode(
            [(row.topic, row.partition, row.batch) for row in rows],
            correlation,
            CLIENT_ID,
            timeout_ms=REQUEST_TIMEOUT_MS,
        )
        size = sum(len(row.batch) for row in rows)
        topics = {row.topic for row in rows}
        answer_size = _ANSWER_BYTES + _ROW_BYTES * len(rows) + sum(_TOPIC_BYTES + len(topic) for topic in topics)
        self.outstanding.append(
            _Due(
                correlation,
                {(row.topic, row.partition): row.tag for row in rows},
                size,
                answer_size,
                time.monotonic(),
            )
        )
        self._bytes += size
        self._answers_bytes += answer_size
        self._unsent = self.connection.push(framed(parts), patience_s)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def flush(self) -> None:
        if not self._unsent:
            return
        rest = self.connection.push([self._unsent], 0.0)
        if len(rest) < len(self._unsent):
            self._moved_at = time.monotonic()
        self._unsent = rest

    @property
    def waits_s(self) -> float:
        """Without response or accepted bytes; negative while throttled.

        On a thin link each request waits behind those before it.
        """
        if not self.outstanding:
            return 0.0
        return time.monotonic() - max(self.outstanding[0].sent_at, self._heard_at + self.throttle_s, self._moved_at)

    @property
    def muted_s(self) -> float:
        """Remaining throttle time."""
        return max(0.0, self._heard_at + self.throttle_s - time.monotonic())

    @property
    def full(self) -> bool:
        """Send nothing before a response arrives or unsent bytes go out."""
        if not self.outstanding:
            return False
        if self._unsent or self.connection.session_ends:
            return True
        return self._bytes >= self._window.bytes or self._answers_bytes >= _ANSWERS_BYTES

    def arrived(self) -> bool:
        """Without waiting; True when a complete response is there."""
        if not self._whole():
            self._make_room()
            view = memoryview(self._buffer)[self._end :]
            self._end += self.connection.receive_some(view, whole=False, brief=True)
        return self._whole()

    def answers(self) -> Iterator[tuple[Tag, produce.Produced]]:
        """Waits for one, then yields all complete ones."""
        yield from self._one(self._frame())
        while self.outstanding and self._whole():
            yield from self._one(self._frame())
        if not self.outstanding and self._end > self._start:
            raise RemoteFault(f"{self.connection.where}: bytes that answer no Produce")

    def _one(self, frame: bytes) -> Iterator[tuple[Tag, produce.Produced]]:
        (correlation,) = struct.unpack_from(">i", frame)
        due, tags, size, answer_size, sent_at = self.outstanding.popleft()
        if correlation != due:
            raise RemoteFault(f"{self.connection.where}: Produce answer {correlation} where {due} was due")
        self._bytes -= size
        self._answers_bytes -= answer_size
        self._heard_at = time.monotonic()
        self.took_s = self._heard_at - sent_at
        self._window.acknowledged(size, self._heard_at)
        try:
            self.throttle_s = produce.throttle_ms(memoryview(frame)[4:]) / 1000
            self.throttled_s += self.throttle_s
            for row in produce.decode(memoryview(frame)[4:]):
                tag = tags.pop((row.topic, row.partition), None)
                if tag is None:
                    raise MalformedAnswer(f"{row.topic}-{row.partition} was not in the request")
                yield tag, row
        except MalformedAnswer as error:
            raise RemoteFault(f"{self.connection.where}: Produce answer makes no sense: {error}") from None
        if tags:
            raise RemoteFault(f"{self.connection.where}: Produce answer leaves out {min(tags)}")

    def _whole(self) -> bool:
        have = self._end - self._start
        if have < 4:
            return False
        return have >= 4 + frame_size(memoryview(self._buffer)[self._start : self._start + 4], self.connection.where)

    def _frame(self) -> bytes:
        while not self._whole():
            self._make_room()
            self._end += self.connection.receive_some(memoryview(self._buffer)[self._end :], whole=False)
        size = frame_size(memoryview(self._buffer)[self._start : self._start + 4], self.connection.where)
        frame = bytes(memoryview(self._buffer)[self._start + 4 : self._start + 4 + size])
        self._start += 4 + size
        return frame

    def _make_room(self) -> None:
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        if self._end == len(self._buffer):
            self._buffer += bytes(len(self._buffer))

    @property
    def buffered(self) -> bool:
        """Invisible to poll(): in our buffer, or decrypted inside TLS."""
        sock = self.connection.sock
        return self._whole() or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)

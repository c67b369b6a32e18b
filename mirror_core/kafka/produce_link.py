"""Produces to one destination broker; meanings of error codes."""

from __future__ import annotations

import math
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from mirror_core.kafka.connection import CLIENT_ID, Connection, parse_frame_size
from mirror_core.kafka.error_mapping import ErrorCode as E
from mirror_core.kafka.sockets import to_frame
from mirror_core.model.errors import RemoteFault
from mirror_core.wire import produce
from mirror_core.wire.fields import MalformedResponse, strip_response_header

MIN_WINDOW_BYTES: Final = 4 << 20
_WINDOW_ROUND_TRIPS: Final = 4
_MIN_SAMPLE_S: Final = 0.05
_APPEND_S: Final = 0.005
"""Added to the round trip."""


class InflightWindow:
    """Four times what the broker accepts within the shortest round trip: less would hide a faster link.

    Not more: an epoch's end waits for everything in flight.
    """

    def __init__(self, round_trip_s: float, max_bytes: int) -> None:
        self.window_bytes = min(MIN_WINDOW_BYTES, max_bytes)
        self._round_trip_s = round_trip_s + _APPEND_S
        self._max_bytes = max_bytes
        self._acked_bytes = 0
        self._sample_began_at = 0.0

    def record_ack(self, size: int, now: float) -> None:
        self._acked_bytes += size
        elapsed_s = now - self._sample_began_at
        if elapsed_s < max(self._round_trip_s, _MIN_SAMPLE_S):
            return
        target_bytes = min(
            self._max_bytes, int(_WINDOW_ROUND_TRIPS * self._round_trip_s * self._acked_bytes / elapsed_s)
        )
        # Decays slowly: a pause of the source must not reset it.
        self.window_bytes = max(min(MIN_WINDOW_BYTES, self._max_bytes), target_bytes, self.window_bytes * 7 // 8)
        self._acked_bytes, self._sample_began_at = 0, now


REQUEST_TIMEOUT_MS = 30_000
"""Socket timeouts are longer, so the broker's response comes first."""
_MAX_RESPONSES_BYTES: Final = 64 << 10
"""Fits into socket buffers: a broker waiting for us to read must not stop reading."""
_RESPONSE_BYTES: Final = 16
_TOPIC_BYTES: Final = 6
_ROW_BYTES: Final = 30
Tag = TypeVar("Tag")


class ProduceBatch(NamedTuple, Generic[Tag]):
    """`tag` returns with the response."""

    topic: str
    partition: int
    batch: memoryview
    tag: Tag
    topic_id: bytes = b""


class _InFlightProduce(NamedTuple, Generic[Tag]):
    correlation: int
    tags: dict[tuple[str, int], Tag]
    topics: dict[bytes, str]
    """By id; empty for a Produce by name."""
    size: int
    response_size: int
    sent_at: float


class ProduceLink(Generic[Tag]):
    """A broker handles a connection's requests in order, at any pipeline depth."""

    def __init__(self, connection: Connection, *, max_bytes: int = MIN_WINDOW_BYTES) -> None:
        """`max_bytes` in flight; the window is mostly smaller."""
        self.connection = connection
        self.in_flight: deque[_InFlightProduce[Tag]] = deque()
        self.latency_s = 0.0
        """Newest answered request."""
        self.throttle_s = 0.0
        """Quota: the broker reads nothing this long after its newest response."""
        self.total_throttle_s = 0.0
        self._window = InflightWindow(connection.round_trip_s, max_bytes)
        self._in_flight_bytes = self._responses_bytes = 0
        self._unsent_bytes = memoryview(b"")
        self._progress_at = self._response_at = -math.inf
        self._buffer = bytearray(1 << 18)
        self._start = self._end = 0

    def send(self, rows: Sequence[ProduceBatch[Tag]], timeout_s: float = 0.0) -> None:
        """Only if not `is_full`. Batches may be overwritten afterwards: unsent bytes are copied."""
        if not self.in_flight:
            self.connection.renew_session()
        correlation = self.connection.next_id()
        topics = {row.topic_id: row.topic for row in rows} if self._can_use_ids(rows) else {}
        if topics:
            by_id = [(row.topic_id, row.partition, row.batch) for row in rows]
            parts = produce.encode_request_by_id(by_id, correlation, CLIENT_ID, timeout_ms=REQUEST_TIMEOUT_MS)
        else:
            by_name = [(row.topic, row.partition, row.batch) for row in rows]
            parts = produce.encode_request(by_name, correlation, CLIENT_ID, timeout_ms=REQUEST_TIMEOUT_MS)
        size = sum(len(row.batch) for row in rows)
        names = {row.topic for row in rows}
        response_size = _RESPONSE_BYTES + _ROW_BYTES * len(rows) + sum(_TOPIC_BYTES + len(name) for name in names)
        self.in_flight.append(
            _InFlightProduce(
                correlation,
                {(row.topic, row.partition): row.tag for row in rows},
                topics,
                size,
                response_size,
                time.monotonic(),
            )
        )
        self._in_flight_bytes += size
        self._responses_bytes += response_size
        self._unsent_bytes = self.connection.push(to_frame(parts), timeout_s)

    def _can_use_ids(self, rows: Sequence[ProduceBatch[Tag]]) -> bool:
        has_ids = all(row.topic_id for row in rows)
        return has_ids and self.connection.newest_versions.get(produce.API_KEY, 0) >= produce.VERSION_BY_ID

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent_bytes)

    def flush(self) -> None:
        if not self._unsent_bytes:
            return
        rest = self.connection.push([self._unsent_bytes], 0.0)
        if len(rest) < len(self._unsent_bytes):
            self._progress_at = time.monotonic()
        self._unsent_bytes = rest

    @property
    def overdue_s(self) -> float:
        """Without response or accepted bytes; negative while throttled.

        On a thin link each request waits behind those before it.
        """
        if not self.in_flight:
            return 0.0
        return time.monotonic() - max(self.in_flight[0].sent_at, self._response_at + self.throttle_s, self._progress_at)

    @property
    def throttled_for_s(self) -> float:
        return max(0.0, self._response_at + self.throttle_s - time.monotonic())

    @property
    def is_full(self) -> bool:
        """Send nothing before a response arrives or unsent bytes go out."""
        if not self.in_flight:
            return False
        if self._unsent_bytes or self.connection.is_session_expiring:
            return True
        return self._in_flight_bytes >= self._window.window_bytes or self._responses_bytes >= _MAX_RESPONSES_BYTES

    def receive_available(self) -> bool:
        """Without waiting; True when a complete response is there."""
        if not self._has_frame():
            self._grow_buffer()
            view = memoryview(self._buffer)[self._end :]
            self._end += self.connection.receive_chunk(view, whole=False, brief=True)
        return self._has_frame()

    def read_responses(self) -> Iterator[tuple[Tag, produce.ProducedPartition]]:
        """Waits for one, then yields all complete ones."""
        yield from self._parse_response(self._receive_frame())
        while self.in_flight and self._has_frame():
            yield from self._parse_response(self._receive_frame())
        if not self.in_flight and self._end > self._start:
            raise RemoteFault(f"{self.connection.where}: bytes that answer no Produce")

    def _parse_response(self, frame: bytes) -> Iterator[tuple[Tag, produce.ProducedPartition]]:
        (correlation,) = struct.unpack_from(">i", frame)
        expected, tags, topics, size, response_size, sent_at = self.in_flight.popleft()
        if correlation != expected:
            raise RemoteFault(f"{self.connection.where}: Produce answer {correlation} where {expected} was due")
        self._in_flight_bytes -= size
        self._responses_bytes -= response_size
        self._response_at = time.monotonic()
        self.latency_s = self._response_at - sent_at
        self._window.record_ack(size, self._response_at)
        try:
            rows, throttle_ms = _decode(strip_response_header(memoryview(frame), is_flexible=bool(topics)), topics)
            self.throttle_s = throttle_ms / 1000
            self.total_throttle_s += self.throttle_s
            for row in rows:
                tag = tags.pop((row.topic, row.partition), None)
                if tag is None:
                    raise MalformedResponse(f"{row.topic}-{row.partition} was not in the request")
                yield tag, row
        except MalformedResponse as error:
            raise RemoteFault(f"{self.connection.where}: Produce answer makes no sense: {error}") from None
        if tags:
            raise RemoteFault(f"{self.connection.where}: Produce answer leaves out {min(tags)}")

    def _has_frame(self) -> bool:
        available = self._end - self._start
        if available < 4:
            return False
        return available >= 4 + parse_frame_size(
            memoryview(self._buffer)[self._start : self._start + 4], self.connection.where
        )

    def _receive_frame(self) -> bytes:
        while not self._has_frame():
            self._grow_buffer()
            self._end += self.connection.receive_chunk(memoryview(self._buffer)[self._end :], whole=False)
        size = parse_frame_size(memoryview(self._buffer)[self._start : self._start + 4], self.connection.where)
        frame = bytes(memoryview(self._buffer)[self._start + 4 : self._start + 4 + size])
        self._start += 4 + size
        return frame

    def _grow_buffer(self) -> None:
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._start, self._end = 0, self._end - self._start
        if self._end == len(self._buffer):
            self._buffer += bytes(len(self._buffer))

    @property
    def has_buffered(self) -> bool:
        """Invisible to poll(): in our buffer, or decrypted inside TLS."""
        sock = self.connection.sock
        return self._has_frame() or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)


def _decode(body: memoryview, topics: Mapping[bytes, str]) -> tuple[Iterable[produce.ProducedPartition], int]:
    if topics:
        return produce.decode_response_by_id(body, topics)
    return produce.decode_response(body), produce.read_throttle_ms(body)


class ProduceOutcome(Enum):
    APPENDED = "appended"
    RECHECK_LOG_END = "look again"
    """Unknown, or not now: continue at the log end once nothing is in flight."""
    DENIED = "denied"
    """No WRITE, or for markers no CLUSTER_ACTION."""
    MISSING_KEY = "unkeyed"
    """By a compacted topic. Nothing was appended."""
    FAILED = "failed"


_TOO_FEW_REPLICAS: Final = (
    "fewer replicas are in sync than min.insync.replicas of the mirror topic asks for: bring brokers back"
)
_SLOW_REPLICAS: Final = "replicas that count as in sync did not take it in time: look at the partition's brokers"

PRODUCE_OUTCOMES: Final[Mapping[E, tuple[ProduceOutcome, str]]] = MappingProxyType(
    {
        E.none: (ProduceOutcome.APPENDED, ""),
        # Appended, but not on all in-sync replicas: not acknowledged; the log end tells later.
        E.request_timed_out: (ProduceOutcome.RECHECK_LOG_END, _SLOW_REPLICAS),
        E.not_enough_replicas_after_append: (ProduceOutcome.RECHECK_LOG_END, _TOO_FEW_REPLICAS),
        E.not_enough_replicas: (ProduceOutcome.RECHECK_LOG_END, _TOO_FEW_REPLICAS),
        # The sequence is taken by our earlier request, or by a twin copier.
        E.out_of_order_sequence_number: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.duplicate_sequence_number: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.not_leader_or_follower: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.leader_not_available: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.unknown_topic_or_partition: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.unknown_topic_id: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.kafka_storage_error: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.network_exception: (ProduceOutcome.RECHECK_LOG_END, ""),
        # Another filler wrote markers of a higher epoch.
        E.transaction_coordinator_fenced: (ProduceOutcome.RECHECK_LOG_END, ""),
        E.topic_authorization_failed: (ProduceOutcome.DENIED, ""),
        E.cluster_authorization_failed: (ProduceOutcome.DENIED, ""),
        E.message_too_large: (ProduceOutcome.FAILED, "raise max.message.bytes of the mirror topic above the source's"),
        E.record_list_too_large: (
            ProduceOutcome.FAILED,
            "raise segment.bytes of the mirror topic above the batch's size",
        ),
        E.corrupt_message: (
            ProduceOutcome.FAILED,
            "the broker found the batch corrupt although its CRC was verified here",
        ),
        E.invalid_producer_epoch: (
            ProduceOutcome.FAILED,
            "a newer owner of this mirror's producer id has fenced this one",
        ),
        E.invalid_record: (
            ProduceOutcome.MISSING_KEY,
            "a record without a key there, and the mirror topic is compacted (the source's was not always, or is not "
            "any more)? Set cleanup.policy=delete on the mirror topic, then recover the partition",
        ),
        E.invalid_timestamp: (
            ProduceOutcome.FAILED,
            "set message.timestamp.before.max.ms and after.max.ms to their maximum",
        ),
        E.unknown_server_error: (
            ProduceOutcome.FAILED,
            "the log of the partition's broker says why. A setting of the mirror topic may be the reason",
        ),
        E.unsupported_compression_type: (ProduceOutcome.FAILED, "the destination does not support the batch's codec"),
    }
)


def classify_produce_error(code: int) -> tuple[ProduceOutcome, str, str]:
    """With remedy and Kafka's name. Unknown codes stop the partition."""
    try:
        error = E(code)
    except ValueError:
        return ProduceOutcome.FAILED, "", f"error {code}"
    outcome = PRODUCE_OUTCOMES.get(error, (ProduceOutcome.FAILED, ""))
    return outcome[0], outcome[1], error.name.upper()

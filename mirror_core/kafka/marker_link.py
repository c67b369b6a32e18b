"""WriteTxnMarkers to one destination broker, and log ends that show their effect. Never blocks."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.response import ListOffsetsResponse

from mirror_core.kafka.codec import decode, encode
from mirror_core.kafka.connection import CLIENT_ID, Connection, parse_frame_size
from mirror_core.kafka.log_offsets import OffsetPoint, build_list_offsets
from mirror_core.kafka.sockets import wait_readable
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire import txn_markers
from mirror_core.wire.fields import MalformedResponse

_LENGTH_BYTES: Final = 4


class FrameBuffer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer, self._received = bytearray(_LENGTH_BYTES), 0
        self._size_known = False
        self.last_received_at = 0.0
        """Monotonic."""

    def receive_frame(self) -> bytearray | None:
        """Without the length prefix; None while bytes are missing."""
        while self._received < len(self._buffer):
            count = self._receive(memoryview(self._buffer)[self._received :])
            if not count:
                return None
            self._received += count
            self.last_received_at = time.monotonic()
            if not self._size_known and self._received == _LENGTH_BYTES:
                self._buffer, self._received = bytearray(parse_frame_size(self._buffer, self._connection.where)), 0
                self._size_known = True
        frame = self._buffer
        self._buffer, self._received, self._size_known = bytearray(_LENGTH_BYTES), 0, False
        return frame

    def _receive(self, view: memoryview) -> int:
        """0 when nothing is available; with TLS also while a record is incomplete."""
        where, sock = self._connection.where, self._connection.sock
        is_tls = isinstance(sock, ssl.SSLSocket)
        try:
            if is_tls:
                sock.settimeout(0.0)
            count = sock.recv_into(view, 0, 0 if is_tls else socket.MSG_DONTWAIT)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise Unreachable(f"{where}: connection lost: {error.strerror or type(error).__name__}") from None
        finally:
            if is_tls:
                sock.settimeout(self._connection.timeout_s)
        if not count:
            raise Unreachable(f"{where}: the broker closed the connection")
        return count


_MAX_AGE_S: Final = 0.1
_ROUND_TRIP_SAMPLES: Final = 4
"""Newest ones only: a route may become longer."""
_LATE_WAIT_S: Final = 0.6
_POLL_S: Final = 0.05


class _RoundTrip(NamedTuple):
    """Bounds: it arrived between two polls."""

    least_s: float
    most_s: float


class MarkerLink:
    """One request at a time. Never retries: a marker sent twice may be two markers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._frames = FrameBuffer(connection)
        self._correlation = 0
        self._send_began_at = 0.0
        self._sent_at = self._empty_at = 0.0
        """Monotonic: sent; response not yet there."""
        self._taken_late = False
        """The response may have waited here too long."""
        self._round_trips = deque[_RoundTrip](maxlen=_ROUND_TRIP_SAMPLES)

    def request_log_ends(self, partitions: Iterable[Partition]) -> None:
        correlation = self.connection.next_id()
        self._send(
            encode(build_list_offsets(list(partitions), OffsetPoint.LOG_END), correlation, CLIENT_ID), correlation
        )

    def receive_log_ends(self) -> Mapping[Partition, tuple[ErrorCode, int]] | None:
        """None if not there yet. After a late read it waits a little, or a process that is always late would never
        learn fresh ends.
        """
        frame = self._receive_frame()
        until = self._send_began_at + _LATE_WAIT_S if self._taken_late else 0.0
        while frame is None and (rest_s := until - time.monotonic()) > 0.0:
            wait_readable([self.connection.sock], min(rest_s, _POLL_S))
            frame = self._receive_frame()
        if frame is None:
            self._taken_late = False
            return None
        self._record_round_trip()
        response = decode(ListOffsetsResponse, frame, self._correlation, self.connection.where)
        return {
            Partition(str(topic.name), int(row.partition_index)): (row.error_code, int(row.offset))
            for topic in response.topics
            for row in topic.partitions
        }

    def send_markers(self, entries: Iterable[txn_markers.MarkerEntry]) -> None:
        """Unless `receive_codes` tells, any number may be appended, at any time."""
        correlation = self.connection.next_id()
        self._send(txn_markers.encode_request(entries, correlation, CLIENT_ID), correlation)

    def receive_codes(self) -> Mapping[tuple[str, int], int] | None:
        """None if not there yet. A code may hide that some markers were appended."""
        frame = self._receive_frame()
        if frame is None:
            return None
        where, correlation = self.connection.where, self._correlation
        (response_correlation,) = struct.unpack_from(">i", frame)
        if response_correlation != correlation:
            raise RemoteFault(f"{where}: WriteTxnMarkers answer {response_correlation} where {correlation} was due")
        try:
            return {(row.topic, row.partition): row.error for row in txn_markers.decode_response(memoryview(frame)[4:])}
        except MalformedResponse as error:
            raise RemoteFault(f"{where}: WriteTxnMarkers answer makes no sense: {error}") from None

    def round_trip_s(self) -> float:
        """Upper bound: the shortest recent one."""
        return min((trip.most_s for trip in self._round_trips), default=self.connection.round_trip_s)

    def is_stale(self, age_s: float) -> bool:
        """Log ends of this age say too little about now. Only distance excuses age, not waiting here."""
        return age_s > _MAX_AGE_S + 2 * min((trip.least_s for trip in self._round_trips), default=0.0)

    def _send(self, request: bytes, correlation: int) -> None:
        self.connection.renew_session()
        self._correlation, self._send_began_at = correlation, time.monotonic()
        self.connection.send([request])
        self._sent_at = self._empty_at = time.monotonic()

    def _receive_frame(self) -> bytearray | None:
        now, limit_s = time.monotonic(), self.connection.timeout_s
        frame = self._frames.receive_frame()
        if frame is None:
            self._empty_at = now
            if now - max(self._sent_at, self._frames.last_received_at) > limit_s:
                raise Unreachable(f"{self.connection.where}: no answer within {limit_s} s")
        return frame

    def _record_round_trip(self) -> None:
        # A pause during the send hides how long the response took.
        trip = _RoundTrip(self._empty_at - self._sent_at, time.monotonic() - self._send_began_at)
        # A distant broker's lower bound excuses a wide poll interval.
        self._taken_late = trip.most_s - trip.least_s > max(_MAX_AGE_S, trip.least_s)
        if not self._taken_late:
            self._round_trips.append(trip)

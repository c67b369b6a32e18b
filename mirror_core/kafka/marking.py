"""WriteTxnMarkers to one destination broker, and the log ends that show their effect."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.response import ListOffsetsResponse

from mirror_core.kafka.arriving import Arriving
from mirror_core.kafka.codec import decode, encode
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.offsets import Point, offsets_request
from mirror_core.kafka.sockets import readable
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire import markers
from mirror_core.wire.fields import MalformedAnswer

_FRESH_S: Final = 0.1
_LOOKS: Final = 4
"""Newest ones only: a route may become longer."""
_PATIENCE_S: Final = 0.6
"""After a late read."""
_GLANCE_S: Final = 0.05


class _Way(NamedTuple):
    """It arrived between two polls: bounds of one round trip."""

    least_s: float
    most_s: float


class MarkerLink:
    """One request at a time. Never retries: a marker sent twice may be two markers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._arriving = Arriving(connection)
        self._correlation = 0
        self._asked_at = 0.0
        self._sent_at = self._nothing_at = 0.0
        """Monotonic: sent; response not yet there."""
        self._late = False
        """It may have waited here too long."""
        self._ways = deque[_Way](maxlen=_LOOKS)

    def ask_ends(self, partitions: Iterable[Partition]) -> None:
        """Log end: next offset to be written."""
        correlation = self.connection.next_id()
        self._send(encode(offsets_request(list(partitions), Point.LOG_END), correlation, CLIENT_ID), correlation)

    def ends(self) -> Mapping[Partition, tuple[ErrorCode, int]] | None:
        """None: not there yet. After a late read it waits a little: else who is always late never learns fresh
        ends."""
        frame = self._answer()
        until = self._asked_at + _PATIENCE_S if self._late else 0.0
        while frame is None and (rest_s := until - time.monotonic()) > 0.0:
            readable([self.connection.sock], min(rest_s, _GLANCE_S))
            frame = self._answer()
        if frame is None:
            self._late = False
            return None
        self._measure()
        answer = decode(ListOffsetsResponse, frame, self._correlation, self.connection.where)
        return {
            Partition(str(topic.name), int(row.partition_index)): (row.error_code, int(row.offset))
            for topic in answer.topics
            for row in topic.partitions
        }

    def ask_markers(self, entries: Iterable[markers.Entry]) -> None:
        """Unless `receive_codes` tells, any number may be appended, at any time."""
        correlation = self.connection.next_id()
        self._send(markers.encode(entries, correlation, CLIENT_ID), correlation)

    def codes(self) -> Mapping[tuple[str, int], int] | None:
        """None: not there yet. A code may hide that some markers were appended."""
        frame = self._answer()
        if frame is None:
            return None
        where, correlation = self.connection.where, self._correlation
        (answered,) = struct.unpack_from(">i", frame)
        if answered != correlation:
            raise RemoteFault(f"{where}: WriteTxnMarkers answer {answered} where {correlation} was due")
        try:
            return {(row.topic, row.partition): row.error for row in markers.decode(memoryview(frame)[4:])}
        except MalformedAnswer as error:
            raise RemoteFault(f"{where}: WriteTxnMarkers answer makes no sense: {error}") from None

    def round_trip_s(self) -> float:
        """Upper bound: the shortest recent one."""
        return min((way.most_s for way in self._ways), default=self.connection.round_trip_s)

    def stale(self, age_s: float) -> bool:
        """Whether log ends of this age say too little about now.

        Only distance excuses age, not waiting here.
        """
        return age_s > _FRESH_S + 2 * min((way.least_s for way in self._ways), default=0.0)

    def _send(self, request: bytes, correlation: int) -> None:
        self.connection.renew_session()
        self._correlation, self._asked_at = correlation, time.monotonic()
        self.connection.send([request])
        self._sent_at = self._nothing_at = time.monotonic()

    def _answer(self) -> bytearray | None:
        """Unreachable when nothing arrives in time."""
        now, limit_s = time.monotonic(), self.connection.timeout_s
        frame = self._arriving.take()
        if frame is None:
            self._nothing_at = now
            if now - max(self._sent_at, self._arriving.heard_at) > limit_s:
                raise Unreachable(f"{self.connection.where}: no answer within {limit_s} s")
        return frame

    def _measure(self) -> None:
        # A pause during the send hides how long the response took.
        way = _Way(self._nothing_at - self._sent_at, time.monotonic() - self._asked_at)
        # A distant broker's lower bound excuses a wide poll interval.
        self._late = way.most_s - way.least_s > max(_FRESH_S, way.least_s)
        if not self._late:
            self._ways.append(way)

"""Markers to one destination broker, and the log ends that tell what became of them."""

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
"""So many of the newest say how far the broker is now. A way may become longer while a connection lasts."""
_PATIENCE_S: Final = 0.6
"""With a broker for log ends, after an answer that lay here for too long: whoever is further away can do nothing in any
turn, and an owner has learned the length of the way."""
_GLANCE_S: Final = 0.05
"""Between two glances at an answer that is waited for."""


class _Way(NamedTuple):
    """How long an answer took, as far as is known: it came between two glances."""

    least_s: float
    most_s: float


class MarkerLink:
    """One request at a time: it is sent, and its answer is taken once it has come. Whoever takes it may be late.

    Never sends anything again: a marker sent twice may be two markers.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._arriving = Arriving(connection)
        self._correlation = 0
        self._asked_at = 0.0
        """Monotonic time before the newest request was sent."""
        self._sent_at = self._nothing_at = 0.0
        """Monotonic times at which it was sent, and at which its answer had not come yet."""
        self._late = False
        """The newest answer on log ends may have lain here for too long."""
        self._ways = deque[_Way](maxlen=_LOOKS)
        """Of the newest looks at log ends whose answers were not taken late."""

    def ask_ends(self, partitions: Iterable[Partition]) -> None:
        """Ask for the next offset to be written, for partitions that this broker leads."""
        correlation = self.connection.next_id()
        self._send(encode(offsets_request(list(partitions), Point.LOG_END), correlation, CLIENT_ID), correlation)

    def ends(self) -> Mapping[Partition, tuple[ErrorCode, int]] | None:
        """The answer; None: it has not come yet. After one that was taken late it is waited for, though not for long:
        who is always late would never learn what may be acted upon."""
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
        """Append markers. Unless `codes` tells, any number of them may be appended, at any time from now on."""
        correlation = self.connection.next_id()
        self._send(markers.encode(entries, correlation, CLIENT_ID), correlation)

    def codes(self) -> Mapping[tuple[str, int], int] | None:
        """The error code of each partition, which may hide that only some of its markers were appended; None: it has
        not come yet."""
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
        """To the broker and back, or more: how long after its question the quickest of the newest answers was taken."""
        return min((way.most_s for way in self._ways), default=self.connection.round_trip_s)

    def stale(self, age_s: float) -> bool:
        """Whether log ends that were asked for so long ago say too little of now: the answer took, or lay, too long.
        Only the way to a broker far away excuses that, and not for how long answers lay here."""
        return age_s > _FRESH_S + 2 * min((way.least_s for way in self._ways), default=0.0)

    def _send(self, request: bytes, correlation: int) -> None:
        self.connection.renew_session()
        self._correlation, self._asked_at = correlation, time.monotonic()
        self.connection.send([request])
        self._sent_at = self._nothing_at = time.monotonic()

    def _answer(self) -> bytearray | None:
        """Unreachable when nothing of it comes in time."""
        now, limit_s = time.monotonic(), self.connection.timeout_s
        frame = self._arriving.take()
        if frame is None:
            self._nothing_at = now
            if now - max(self._sent_at, self._arriving.heard_at) > limit_s:
                raise Unreachable(f"{self.connection.where}: no answer within {limit_s} s")
        return frame

    def _measure(self) -> None:
        # Whoever stood still while he sent the question has seen nothing of how long the answer took.
        way = _Way(self._nothing_at - self._sent_at, time.monotonic() - self._asked_at)
        # Of a broker that is further away than we wait for, more is known than what a turn leaves open.
        self._late = way.most_s - way.least_s > max(_FRESH_S, way.least_s)
        if not self._late:
            self._ways.append(way)

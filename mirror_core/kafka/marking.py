"""Markers to one destination broker, and the log ends that tell what became of them."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.response import ListOffsetsResponse

from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.offsets import Point, offsets_request
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire import markers
from mirror_core.wire.fields import MalformedAnswer

_FRESH_S: Final = 0.1
_LOOKS: Final = 4
"""So many of the newest say how far the broker is now. A way may become longer while a connection lasts."""


class MarkerLink:
    """One request at a time. Never sends anything again: a marker sent twice may be two markers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._took_s = deque[float](maxlen=_LOOKS)
        """The newest questions for log ends."""

    def log_ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, tuple[ErrorCode, int]]:
        """Next offset to be written, for partitions that this broker leads."""
        asked = time.monotonic()
        answer = self.connection.call(offsets_request(list(partitions), Point.LOG_END), ListOffsetsResponse)
        self._took_s.append(time.monotonic() - asked)
        return {
            Partition(str(topic.name), int(row.partition_index)): (row.error_code, int(row.offset))
            for topic in answer.topics
            for row in topic.partitions
        }

    def round_trip_s(self) -> float:
        """How long the quickest of the newest answers took; 0 while none has come."""
        return min(self._took_s, default=0.0)

    def stale(self, age_s: float) -> bool:
        """Whether log ends that were asked for so long ago say too little of now: the answer took, or lay, too long."""
        return age_s > _FRESH_S + 2 * self.round_trip_s()

    def write(self, entries: Iterable[markers.Entry]) -> Mapping[tuple[str, int], int]:
        """Append markers; the error code of each partition. It may hide that only some of its markers were appended.

        Unreachable when there was no answer: then any number of them may be appended, at any time from now on.
        """
        where, correlation = self.connection.where, self.connection.next_id()
        self.connection.send([markers.encode(entries, correlation, CLIENT_ID)])
        frame = self.connection.receive()
        (answered,) = struct.unpack_from(">i", frame)
        if answered != correlation:
            raise RemoteFault(f"{where}: WriteTxnMarkers answer {answered} where {correlation} was due")
        try:
            return {(row.topic, row.partition): row.error for row in markers.decode(memoryview(frame)[4:])}
        except MalformedAnswer as error:
            raise RemoteFault(f"{where}: WriteTxnMarkers answer makes no sense: {error}") from None

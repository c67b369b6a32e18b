"""Fetches from one source broker: one request in flight, one reused buffer."""

from __future__ import annotations

import math
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mirror_core.kafka.connection import CLIENT_ID, Connection, frame_size
from mirror_core.kafka.fetch_size import NEAR_BYTES, FetchSizer
from mirror_core.kafka.sockets import readable
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Partition
from mirror_core.wire import fetch
from mirror_core.wire.fields import MalformedAnswer

_BEGINNING: Final = struct.Struct(">ii")
"""Correlation id and throttle time."""
_LEAST_SHARE: Final = 128 << 10
"""A thousand partitions take turns."""
_PER_PARTITION: Final = 16 << 10
"""Of the response: many partitions cost the broker more."""
_SPARE: Final = 1 << 20
_LENGTH: Final = 4


class FetchLink:
    """Send a Fetch, then read its response. Views are valid until the next one."""

    def __init__(
        self,
        connection: Connection,
        *,
        max_bytes: int,
        partition_max_bytes: int,
        at_once: bool = False,
        brief_s: float | None = None,
    ) -> None:
        """Limits; requests mostly ask for less, or for all with `full_size`.

        `receive_timeout_s`: for the rest of a response; None: the usual timeout.
        """
        self.connection = connection
        self._brief_s = brief_s
        if brief_s is not None:
            connection.receive_within(brief_s)
        self.pending = False
        self.asked = 0
        self.throttle_ms = 0
        """A throttled broker returns no data."""
        self.room = 0
        """A response of at most this size had room for more of every partition."""
        self.took = 0
        self.filled = False
        """The newest response was so full that more data must exist."""
        self._sizer = FetchSizer(max_bytes, sys.maxsize if at_once else NEAR_BYTES)
        self._partition_max_bytes = partition_max_bytes
        self._share = 0
        self._asked_at = self._heard_at = 0.0
        self._max_wait_ms = 0
        self._buffer = bytearray(_LENGTH)
        self._have, self._due = 0, _LENGTH
        self._late = False
        self._correlation = 0
        self._asked: dict[tuple[str, int], Partition] = {}

    def limit(self, max_bytes: int, partition_max_bytes: int) -> None:
        """For later requests; also frees a much larger buffer."""
        if max_bytes < self.most and len(self._buffer) > 2 * max_bytes + _SPARE:
            self._buffer = bytearray(_LENGTH)  # views keep the old buffer
        self._sizer.limit(max_bytes)
        self._partition_max_bytes = partition_max_bytes

    def ask(self, wanted: Iterable[fetch.Wanted], *, max_wait_ms: int, isolation: fetch.Isolation) -> None:
        """The broker answers when it has a byte, or after the wait."""
        items = list(wanted)
        self.connection.renew_session()
        self._correlation = self.connection.next_id()
        self.asked += 1
        self._asked = {(i.partition.topic, i.partition.index): i.partition for i in items}
        size = min(self._sizer.most, max(self._sizer.size, _PER_PARTITION * len(items)))
        # All partitions in each response: the more there are, the fewer Produce requests.
        # No single one may fill the response: then `room_bytes` would never hold.
        least = min(_LEAST_SHARE, size // 2)
        self._share = min(self._partition_max_bytes, max(least, size // max(1, len(items))))
        self.room = size - self._share
        request = fetch.encode(
            items,
            self._correlation,
            CLIENT_ID,
            isolation=isolation,
            max_wait_ms=max_wait_ms,
            max_bytes=size,
            partition_max_bytes=self._share,
        )
        self.connection.send([request])
        self._asked_at = self._heard_at = time.monotonic()
        self._max_wait_ms = max_wait_ms
        self._have, self._due = 0, _LENGTH
        self.pending = True

    @property
    def waits_s(self) -> float:
        """Time since a response, or more of it, was due; negative before."""
        due = max(self._heard_at, self._asked_at + (self._max_wait_ms + self.throttle_ms) / 1000)
        return time.monotonic() - due if self.pending else -math.inf

    @property
    def partitions(self) -> Collection[Partition]:
        return self._asked.values() if self.pending else ()

    @property
    def asked_for(self) -> Collection[Partition]:
        return self._asked.values()

    @property
    def most(self) -> int:
        return self._sizer.most

    @property
    def alone(self) -> bool:
        return len(self._asked) == 1

    def arrived(self) -> bool:
        """True when complete. After a time limit it takes only available bytes: others get their turn."""
        began, brief = time.monotonic(), self._brief_s is not None
        limit_s = self._brief_s or self.connection.timeout_s
        while self._have < self._due:
            if self._late and not self.connection.has_something:
                return False
            view = memoryview(self._buffer)[self._have : self._due]
            count = self.connection.receive_some(view, whole=not self._late, brief=brief)
            self._have += count
            now = time.monotonic()
            if count:
                self._heard_at = now
            if count and self._have == _LENGTH:
                self._make_room()
            self._late = self._late or not count or (self._have < self._due and now - began >= limit_s)
            if not count:
                return False
        self._late = False
        return True

    def _make_room(self) -> None:
        self._due = _LENGTH + frame_size(self._buffer, self.connection.where)
        if len(self._buffer) < self._due:
            # Replace, not extend: page faults of fresh memory cost more than the copy.
            self._buffer = bytearray(self._due + _SPARE)

    def take(self) -> Iterator[fetch.Fetched]:
        """Waits; yields the partitions."""
        while not self.arrived():
            if not readable([self.connection.sock], self.connection.timeout_s):
                raise Unreachable(f"{self.connection.where}: no answer within {self.connection.timeout_s} s")
        size = self._due - _LENGTH
        frame = memoryview(self._buffer)[_LENGTH : self._due]
        self.pending = False
        self.took = size
        self.filled = 2 * size > self._sizer.size
        self._sizer.took(size, time.monotonic() - self._asked_at)
        if size < _BEGINNING.size:
            raise RemoteFault(f"{self.connection.where}: Fetch answer of {size} bytes")
        correlation, self.throttle_ms = _BEGINNING.unpack_from(frame)
        if correlation != self._correlation:
            raise RemoteFault(f"{self.connection.where}: Fetch answer {correlation} where {self._correlation} was due")
        try:
            for answer in fetch.decode(frame[4:], self._asked):
                if (answer.partition.topic, answer.partition.index) not in self._asked:
                    raise MalformedAnswer(f"{answer.partition} was not asked for")
                self.filled = self.filled or len(answer.records) >= self._share
                yield answer
        except MalformedAnswer as error:
            raise RemoteFault(f"{self.connection.where}: Fetch answer makes no sense: {error}") from None


def fetch_once(link: FetchLink, partition: Partition, offset: int) -> fetch.Fetched | None:
    """Uncommitted records included; does not wait. None: no data."""
    wanted = [fetch.Wanted(partition, offset)]
    link.ask(wanted, max_wait_ms=0, isolation=fetch.Isolation.READ_UNCOMMITTED)
    return next(iter(list(link.take())), None)

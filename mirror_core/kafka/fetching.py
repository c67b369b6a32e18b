"""Fetching from one source broker: one request in flight, one reused buffer."""

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
"""Correlation id and throttle time of an answer."""
_LEAST_SHARE: Final = 128 << 10
"""Bytes of a partition; a thousand partitions take turns."""
_PER_PARTITION: Final = 16 << 10
"""Bytes of the whole answer for each partition asked for: a question about a thousand costs the broker more."""
_SPARE: Final = 1 << 20
_LENGTH: Final = 4
"""Bytes that say how long the answer is."""


class FetchLink:
    """Ask, then take the answer before asking again. Views of an answer are good until the next one is taken."""

    def __init__(
        self,
        connection: Connection,
        *,
        max_bytes: int,
        partition_max_bytes: int,
        at_once: bool = False,
        brief_s: float | None = None,
    ) -> None:
        """The most bytes to ask for, of all partitions and of each; mostly it will be less (`FetchSizer`), or all of
        it `at_once`. `brief_s`: for so long `arrived` waits for an answer that has begun; None: as long as for any."""
        self.connection = connection
        self._brief_s = brief_s
        if brief_s is not None:
            connection.receive_within(brief_s)
        self.pending = False
        self.asked = 0
        """Requests so far."""
        self.throttle_ms = 0
        """Of the newest answer: a throttled broker answers with nothing."""
        self.room = 0
        """The newest answer, if of at most so many bytes, had room for more of every partition."""
        self.took = 0
        """Bytes of the newest answer."""
        self.filled = False
        """The newest answer, or what it brought of a partition, was so long that there must be more."""
        self._sizer = FetchSizer(max_bytes, sys.maxsize if at_once else NEAR_BYTES)
        self._partition_max_bytes = partition_max_bytes
        self._share = 0
        """Bytes of a partition that the newest question asked for at most."""
        self._asked_at = self._heard_at = 0.0
        self._max_wait_ms = 0
        self._buffer = bytearray(_LENGTH)
        self._have, self._due = 0, _LENGTH
        """Bytes of the answer and its length: that have come, and in all, as far as is known."""
        self._late = False
        self._correlation = 0
        self._asked: dict[tuple[str, int], Partition] = {}

    def limit(self, max_bytes: int, partition_max_bytes: int) -> None:
        """From the next question on ask for so much at most, and keep no buffer for far more."""
        if max_bytes < self.most and len(self._buffer) > 2 * max_bytes + _SPARE:
            self._buffer = bytearray(_LENGTH)  # views of the newest answer keep the old one
        self._sizer.limit(max_bytes)
        self._partition_max_bytes = partition_max_bytes

    def ask(self, wanted: Iterable[fetch.Wanted], *, max_wait_ms: int, isolation: fetch.Isolation) -> None:
        """Send a Fetch; the broker holds it until there is a byte to return or the wait is over."""
        items = list(wanted)
        self.connection.renew_session()
        self._correlation = self.connection.next_id()
        self.asked += 1
        self._asked = {(i.partition.topic, i.partition.index): i.partition for i in items}
        size = min(self._sizer.most, max(self._sizer.size, _PER_PARTITION * len(items)))
        # All partitions in each answer: a Produce takes one batch of each, so the more there are the fewer it takes.
        # None of several may use up a whole answer, however small it is: then there would never be `room`.
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
        """For how long an answer, or more of it, has been due that the broker has no reason to hold back; below 0
        before that."""
        due = max(self._heard_at, self._asked_at + (self._max_wait_ms + self.throttle_ms) / 1000)
        return time.monotonic() - due if self.pending else -math.inf

    @property
    def partitions(self) -> Collection[Partition]:
        """That a question under way is about."""
        return self._asked.values() if self.pending else ()

    @property
    def asked_for(self) -> Collection[Partition]:
        """That the newest question was about."""
        return self._asked.values()

    @property
    def most(self) -> int:
        """Bytes that are asked for at most."""
        return self._sizer.most

    @property
    def alone(self) -> bool:
        """Whether the newest request named one partition only."""
        return len(self._asked) == 1

    def arrived(self) -> bool:
        """Receive the answer into the reused buffer; whether it is there, to be taken. One that takes longer than a
        time limit is received as its bytes come from then on, and whoever else is there has the time."""
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
            # A new one, not a longer one: page faults of fresh memory cost more than the copy, so grow seldom.
            self._buffer = bytearray(self._due + _SPARE)

    def take(self) -> Iterator[fetch.Fetched]:
        """Wait until the answer is there, and go through its partitions."""
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
    """One partition from one offset on, uncommitted records too, without waiting; None when nothing came back."""
    wanted = [fetch.Wanted(partition, offset)]
    link.ask(wanted, max_wait_ms=0, isolation=fetch.Isolation.READ_UNCOMMITTED)
    return next(iter(list(link.take())), None)

"""Sends a task's progress to the driver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from mirror_core.copy.datagrams import Line, Sort, portions
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State

_AT_ONCE: Final = 50


class Beacon:
    """Reports every partition each second. A lost datagram does no harm."""

    def __init__(self, task: int, line: Line) -> None:
        self._task = task
        self._line = line
        self._due = 0.0
        self._waiting = deque[bytes]()

    def tell(self, replicators: Iterable[PartitionReplicator], last: bool = False) -> None:
        if not self._line.open:
            return
        now = time.time()
        if last or (now >= self._due and not self._waiting):
            self._due = now + 1.0
            self._waiting = deque(self._bodies(replicators, now))
        for _ in range(len(self._waiting) if last else min(_AT_ONCE, len(self._waiting))):
            self._line.tell(Sort.PROGRESS, self._waiting.popleft())

    def _bodies(self, replicators: Iterable[PartitionReplicator], now: float) -> Iterable[bytes]:
        rows = (
            (
                one.partition.topic,
                one.partition.index,
                one.place.acknowledged,
                # A LOST partition may have lost its source: the known end may be outdated.
                None if one.state is State.LOST or one.source.silent(one.place.position, now) else one.source.end,
                one.records,
                one.tally.bytes,
                max(0, one.place.seed_end - one.place.acknowledged),
            )
            for one in replicators
            if one.tally.first is not None
        )
        return (b'{"task":%d,"t":%.6f,"rows":%b}' % (self._task, now, part) for part in portions(rows))

"""Sends a task's progress to the driver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from mirror_core.copy.datagrams import DatagramKind, DriverChannel, encode_bodies
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import CopyState

_MAX_DATAGRAMS_PER_TURN: Final = 50


class ProgressSender:
    """Reports every partition each second. A lost datagram does no harm."""

    def __init__(self, task: int, channel: DriverChannel) -> None:
        self._task = task
        self._channel = channel
        self._next_send_at = 0.0
        self._waiting = deque[bytes]()

    def send(self, replicators: Iterable[PartitionReplicator], last: bool = False) -> None:
        if not self._channel.is_open:
            return
        now = time.time()
        if last or (now >= self._next_send_at and not self._waiting):
            self._next_send_at = now + 1.0
            self._waiting = deque(self._bodies(replicators, now))
        for _ in range(len(self._waiting) if last else min(_MAX_DATAGRAMS_PER_TURN, len(self._waiting))):
            self._channel.send(DatagramKind.PROGRESS, self._waiting.popleft())

    def _bodies(self, replicators: Iterable[PartitionReplicator], now: float) -> Iterable[bytes]:
        rows = (
            (
                replicator.partition.topic,
                replicator.partition.index,
                replicator.progress.acknowledged,
                # A LOST partition may have lost its source: the known end may be outdated.
                None
                if replicator.state is CopyState.LOST or replicator.source.is_silent(replicator.progress.position, now)
                else replicator.source.end,
                replicator.records,
                replicator.counts.bytes,
                max(0, replicator.progress.seed_end - replicator.progress.acknowledged),
            )
            for replicator in replicators
            if replicator.counts.first is not None
        )
        return (b'{"task":%d,"t":%.6f,"rows":%b}' % (self._task, now, portion) for portion in encode_bodies(rows))

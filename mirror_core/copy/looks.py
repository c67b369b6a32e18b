"""Verdicts on many partitions, within a time budget: those that take a look into the logs several at a time.

A look takes round trips, and what copies already waits meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, NamedTuple, NoReturn, cast

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.tail import BothLogs
from mirror_core.copy.verdict import Judge, Logs
from mirror_core.decide.position import Seen
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.reader import Unreadable
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName

AT_ONCE: Final = 8
"""Looks; each has its own connections, which it keeps."""
_BUDGET_S: Final = 0.5


class Case(NamedTuple):
    """What a verdict is on."""

    replicator: PartitionReplicator
    seen: Seen
    agreed: int | None


class Looks:
    """Of one task. Connections are opened when they are needed, and stay."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self._source, self._destination = source, destination
        self._producer_id = producer_id
        self._logs: list[BothLogs] = []
        self._next = threading.Lock()

    def decide(self, cases: Sequence[Case]) -> None:
        """Those for which the time is not enough stay as they are; the first ones have their turn in any case."""
        until = time.monotonic() + _BUDGET_S
        left = [case for case in cases if not self._decided(case)]
        if not left:
            return
        while len(self._logs) < min(AT_ONCE, len(left)):
            self._logs.append(BothLogs(self._source, self._destination, self._producer_id))
        queue = iter(left)
        with ThreadPoolExecutor(min(AT_ONCE, len(left))) as pool:
            at_work = [
                pool.submit(copy_context().run, self._look, logs, queue, until) for logs in self._logs[: len(left)]
            ]
        for one in at_work:
            one.result()

    def _decided(self, case: Case) -> bool:
        """By what is known already."""
        try:
            self._judge(cast("Logs", _Closed())).decide(*case)
        except _LookNeeded:
            return False
        return True

    def _look(self, logs: BothLogs, queue: Iterator[Case], until: float) -> None:
        while True:
            with self._next:
                case = next(queue, None)
            if case is None:
                return
            try:
                self._judge(logs).decide(*case)
            except RemoteFault as error:
                unreadable(case.replicator, error)
                logs.close()
            if time.monotonic() > until:
                return

    def _judge(self, logs: Logs) -> Judge:
        return Judge(source=self._source.name, destination=self._destination.name, logs=logs)

    def close(self) -> None:
        for logs in self._logs:
            logs.close()
        self._logs = []


class _LookNeeded(MirrorError):
    """Into a log."""


class _Closed:
    """Logs into which nobody looks."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _LookNeeded(name)


def unreadable(replicator: PartitionReplicator, error: RemoteFault, misled: ClusterName | None = None) -> None:
    """What cannot be read concerns this partition, and no other. It is looked at again, or only people can help.
    `misled`: as in `PartitionReplicator.lose`."""
    if isinstance(error, MissingPermission):
        replicator.fail(str(error), None, FailureKind.DENIED)
    elif isinstance(error, Unreadable):
        replicator.fail(str(error), None, FailureKind.OTHER)
    else:
        replicator.lose(str(error), misled)

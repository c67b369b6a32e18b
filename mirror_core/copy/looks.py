"""Runs comparisons of both logs in background threads. A long one does not hold up the others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, NoReturn, cast

from mirror_core.copy.beside import Beside
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.tail import BothLogs
from mirror_core.copy.verdict import Judge, Logs, Resumes, Verdict, unsure_since
from mirror_core.copy.words import comparing, waits_for_turn
from mirror_core.decide.position import Seen
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_faults import Unreadable
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName

AT_ONCE: Final = 8
"""Comparisons that are not long yet. Each has its own connections; this many are kept."""
AT_MOST: Final = 2 * AT_ONCE
"""With long ones: all threads of a task share one core with copying."""
_LONG_S: Final = 2.0
_BUDGET_S: Final = 0.5


class Case(NamedTuple):
    replicator: PartitionReplicator
    seen: Seen
    agreed: int | None
    asked: float


class _Look(NamedTuple):
    replicator: PartitionReplicator
    seen: Seen
    since: int | None
    asked: float
    why: str


class _Worker(NamedTuple):
    logs: BothLogs
    began: float


Told = tuple[PartitionReplicator, Verdict | RemoteFault]


class Looks:
    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int, beside: Beside) -> None:
        self._source, self._destination = source, destination
        self._producer_id = producer_id
        self._beside = beside
        self._idle: list[BothLogs] = []
        self._at_work: dict[Future[None], _Worker] = {}
        self._left = deque[_Look]()
        self._until = 0.0
        self._open: dict[PartitionReplicator, _Look] = {}
        self._told = SimpleQueue[tuple[_Look, Verdict | RemoteFault]]()

    @property
    def at_work(self) -> bool:
        return bool(self._at_work)

    @property
    def under_way(self) -> int:
        return len(self._open) - len(self._left)

    def begin(self, cases: Sequence[Case]) -> Iterator[Told]:
        wanted = list[_Look]()
        for case in cases:
            one, seen = case.replicator, case.seen
            look = _Look(one, seen, unsure_since(one, seen, case.agreed), case.asked, one.lost_why)
            try:
                yield look.replicator, self._verdict(cast("Logs", _Closed()), look)
            except _LookNeeded:
                wanted.append(look)
        workers = min(len(wanted), self._free())
        if workers <= 0:  # waiting comparisons keep their turn
            for look in wanted:
                self._wait(look, beside=False)
            return
        self._leave_rest()
        for look in wanted:
            self._wait(look, beside=True)
            self._open[look.replicator] = look
        self._left, self._until = deque(wanted), time.monotonic() + _BUDGET_S
        for _ in range(workers):
            logs = self._idle.pop() if self._idle else self._logs()
            begun = self._beside.begin(partial(self._work, logs, self._left, self._until))
            self._at_work[begun] = _Worker(logs, time.monotonic())

    def _free(self) -> int:
        now = time.monotonic()
        not_long = sum(now - worker.began < _LONG_S for worker in self._at_work.values())
        return min(AT_ONCE - not_long, AT_MOST - len(self._at_work))

    def told(self) -> Iterator[Told]:
        if time.monotonic() > self._until:
            self._leave_rest()
        for one in [one for one in self._at_work if one.done()]:
            self._keep(self._at_work.pop(one).logs)
            one.result()
        try:
            while True:
                look, found = self._told.get_nowait()
                if self._open.get(look.replicator) is look:
                    del self._open[look.replicator]
                    look.replicator.wait(look.why)
                    yield look.replicator, found
        except Empty:
            return

    def _keep(self, logs: BothLogs) -> None:
        if len(self._idle) < AT_ONCE:
            self._idle.append(logs)
        else:
            logs.close()

    def wait(self, limit_s: float) -> None:
        wait(self._at_work, limit_s, FIRST_COMPLETED)

    def _work(self, logs: BothLogs, left: deque[_Look], until: float) -> None:
        while (look := _next(left)) is not None:
            try:
                found: Verdict | RemoteFault = self._verdict(logs, look)
            except RemoteFault as error:
                found = error
                logs.close()
            self._told.put((look, found))
            if time.monotonic() > until:
                return

    def _logs(self) -> BothLogs:
        return BothLogs(self._source, self._destination, self._producer_id)

    def _verdict(self, logs: Logs, look: _Look) -> Verdict:
        judge = Judge(source=self._source.name, destination=self._destination.name, logs=logs)
        found = judge.verdict(look.replicator, look.seen, look.since)
        return found._replace(asked=look.asked) if isinstance(found, Resumes) else found

    def _leave_rest(self) -> None:
        while (look := _next(self._left)) is not None:
            del self._open[look.replicator]
            self._wait(look, beside=False)

    def _wait(self, look: _Look, *, beside: bool) -> None:
        words = waits_for_turn(self._destination.name, look.replicator.partition, len(self._at_work))
        look.replicator.wait(words, beside=beside)

    def close(self) -> None:
        self._leave_rest()
        now, here, there = time.monotonic(), self._destination.name, self._source.name
        for one, look in self._open.items():
            one.wait(comparing(here, there, one.partition, look.seen.log_end, now - look.asked))
        self._open.clear()
        for begun, worker in self._at_work.items():
            worker.logs.halt()
            begun.add_done_callback(partial(_close, worker.logs))
        for logs in self._idle:
            logs.close()
        self._at_work, self._idle = {}, []


def _close(logs: BothLogs, ended: Future[None]) -> None:
    logs.close()


def _next(left: deque[_Look]) -> _Look | None:
    try:
        return left.popleft()
    except IndexError:
        return None


class _LookNeeded(MirrorError): ...


class _Closed:
    """Raises on any use: the decision needs a comparison."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _LookNeeded(name)


def unreadable(replicator: PartitionReplicator, error: RemoteFault, misled: ClusterName | None = None) -> None:
    """A log that cannot be read affects this partition only: retried, or left to operators.

    `misled`: see `PartitionReplicator.mark_lost`.
    """
    if isinstance(error, MissingPermission):
        replicator.fail(str(error), None, FailureKind.DENIED)
    elif isinstance(error, Unreadable):
        replicator.fail(str(error), None, FailureKind.OTHER)
    else:
        replicator.lose(str(error), misled)

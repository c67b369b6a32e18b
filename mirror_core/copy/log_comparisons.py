"""Compares logs in background threads: a long comparison holds up no other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, NoReturn, cast

from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.log_inspection import RemoteLogInspector
from mirror_core.copy.messages import format_comparing, format_comparison_queued
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.resume_decision import (
    CopyDecision,
    LogInspector,
    ResumeDecider,
    ResumeDecision,
    find_comparison_start,
)
from mirror_core.decide.gaps_and_resume import BothLogBounds
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_reader import LogUnreadable
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName

MAX_SHORT_COMPARISONS: Final = 8
"""Each has its own connections; this many are kept."""
MAX_COMPARISONS: Final = 2 * MAX_SHORT_COMPARISONS
"""With long ones: all threads of a task share one core with copying."""
_LONG_COMPARISON_S: Final = 2.0
_START_WINDOW_S: Final = 0.5


class ComparisonCase(NamedTuple):
    replicator: PartitionReplicator
    bounds: BothLogBounds
    agreed_end: int | None
    requested_at: float


class _PendingComparison(NamedTuple):
    replicator: PartitionReplicator
    bounds: BothLogBounds
    compare_from: int | None
    requested_at: float
    previous_reason: str


class _ComparisonThread(NamedTuple):
    inspector: RemoteLogInspector
    started_at: float


ComparisonResult = tuple[PartitionReplicator, CopyDecision | RemoteFault]


class LogComparisons:
    def __init__(
        self, source: ClusterClient, destination: ClusterClient, producer_id: int, threads: BackgroundThreads
    ) -> None:
        self._source, self._destination = source, destination
        self._producer_id = producer_id
        self._threads = threads
        self._idle_inspectors: list[RemoteLogInspector] = []
        self._workers: dict[Future[None], _ComparisonThread] = {}
        self._not_started = deque[_PendingComparison]()
        self._start_until = 0.0
        self._undecided: dict[PartitionReplicator, _PendingComparison] = {}
        self._results = SimpleQueue[tuple[_PendingComparison, CopyDecision | RemoteFault]]()

    @property
    def is_busy(self) -> bool:
        return bool(self._workers)

    @property
    def active_count(self) -> int:
        return len(self._undecided) - len(self._not_started)

    def start(self, cases: Sequence[ComparisonCase]) -> Iterator[ComparisonResult]:
        comparisons = list[_PendingComparison]()
        for case in cases:
            replicator, bounds = case.replicator, case.bounds
            comparison = _PendingComparison(
                replicator,
                bounds,
                find_comparison_start(replicator, bounds, case.agreed_end),
                case.requested_at,
                replicator.lost_reason,
            )
            try:
                yield comparison.replicator, self._decide(cast("LogInspector", _ClosedInspector()), comparison)
            except _InspectionNeeded:
                comparisons.append(comparison)
        worker_count = min(len(comparisons), self._count_free_slots())
        if worker_count <= 0:  # waiting comparisons keep their turn
            for comparison in comparisons:
                self._mark_queued(comparison, in_background=False)
            return
        self._postpone_not_started()
        for comparison in comparisons:
            self._mark_queued(comparison, in_background=True)
            self._undecided[comparison.replicator] = comparison
        self._not_started, self._start_until = deque(comparisons), time.monotonic() + _START_WINDOW_S
        for _ in range(worker_count):
            inspector = self._idle_inspectors.pop() if self._idle_inspectors else self._new_inspector()
            future = self._threads.submit(
                partial(self._run_comparisons, inspector, self._not_started, self._start_until)
            )
            self._workers[future] = _ComparisonThread(inspector, time.monotonic())

    def _count_free_slots(self) -> int:
        now = time.monotonic()
        short_count = sum(now - worker.started_at < _LONG_COMPARISON_S for worker in self._workers.values())
        return min(MAX_SHORT_COMPARISONS - short_count, MAX_COMPARISONS - len(self._workers))

    def collect(self) -> Iterator[ComparisonResult]:
        if time.monotonic() > self._start_until:
            self._postpone_not_started()
        for future in [future for future in self._workers if future.done()]:
            self._release(self._workers.pop(future).inspector)
            future.result()
        try:
            while True:
                comparison, result = self._results.get_nowait()
                if self._undecided.get(comparison.replicator) is comparison:
                    del self._undecided[comparison.replicator]
                    comparison.replicator.postpone(comparison.previous_reason)
                    yield comparison.replicator, result
        except Empty:
            return

    def _release(self, inspector: RemoteLogInspector) -> None:
        if len(self._idle_inspectors) < MAX_SHORT_COMPARISONS:
            self._idle_inspectors.append(inspector)
        else:
            inspector.close()

    def wait_for_any(self, limit_s: float) -> None:
        wait(self._workers, limit_s, FIRST_COMPLETED)

    def _run_comparisons(
        self, inspector: RemoteLogInspector, not_started: deque[_PendingComparison], until: float
    ) -> None:
        while (comparison := _pop_next(not_started)) is not None:
            try:
                result: CopyDecision | RemoteFault = self._decide(inspector, comparison)
            except RemoteFault as error:
                result = error
                inspector.close()
            self._results.put((comparison, result))
            if time.monotonic() > until:
                return

    def _new_inspector(self) -> RemoteLogInspector:
        return RemoteLogInspector(self._source, self._destination, self._producer_id)

    def _decide(self, inspector: LogInspector, comparison: _PendingComparison) -> CopyDecision:
        decider = ResumeDecider(source=self._source.name, destination=self._destination.name, inspector=inspector)
        decision = decider.decide(comparison.replicator, comparison.bounds, comparison.compare_from)
        return (
            decision._replace(requested_at=comparison.requested_at)
            if isinstance(decision, ResumeDecision)
            else decision
        )

    def _postpone_not_started(self) -> None:
        while (comparison := _pop_next(self._not_started)) is not None:
            del self._undecided[comparison.replicator]
            self._mark_queued(comparison, in_background=False)

    def _mark_queued(self, comparison: _PendingComparison, *, in_background: bool) -> None:
        text = format_comparison_queued(self._destination.name, comparison.replicator.partition, len(self._workers))
        comparison.replicator.postpone(text, in_background=in_background)

    def close(self) -> None:
        self._postpone_not_started()
        now, destination, source = time.monotonic(), self._destination.name, self._source.name
        for replicator, comparison in self._undecided.items():
            replicator.postpone(
                format_comparing(
                    destination, source, replicator.partition, comparison.bounds.log_end, now - comparison.requested_at
                )
            )
        self._undecided.clear()
        for future, worker in self._workers.items():
            worker.inspector.halt()
            future.add_done_callback(partial(_close_inspector, worker.inspector))
        for logs in self._idle_inspectors:
            logs.close()
        self._workers, self._idle_inspectors = {}, []


def _close_inspector(inspector: RemoteLogInspector, future: Future[None]) -> None:
    inspector.close()


def _pop_next(not_started: deque[_PendingComparison]) -> _PendingComparison | None:
    try:
        return not_started.popleft()
    except IndexError:
        return None


class _InspectionNeeded(MirrorError): ...


class _ClosedInspector:
    """Raises on any use: the decision needs a comparison."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _InspectionNeeded(name)


def handle_unreadable(
    replicator: PartitionReplicator, error: RemoteFault, misleading_cluster: ClusterName | None = None
) -> None:
    """Affects this partition only: retried, or left to operators.

    `misleading_cluster`: see `PartitionReplicator.mark_lost`.
    """
    if isinstance(error, MissingPermission):
        replicator.fail(str(error), None, FailureKind.DENIED)
    elif isinstance(error, LogUnreadable):
        replicator.fail(str(error), None, FailureKind.OTHER)
    else:
        replicator.mark_lost(str(error), misleading_cluster)

"""The data plane's driver: holds the lease, plans epochs, runs tasks, processes reports.

Epochs overlap: the next tasks connect and wait before the boundary, and start when the old ones stop by their own
clock. Where clocks are wrong, the sequences refuse.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from mirror_core.dataplane.allowed import check_data_principal, refuse_to_run
from mirror_core.dataplane.channel import Channel, ears
from mirror_core.dataplane.counters import Counters, Retry
from mirror_core.dataplane.epochs import Epoch, Length, assignments_of
from mirror_core.dataplane.patience import Patience
from mirror_core.dataplane.planning import Planner, Work
from mirror_core.dataplane.progress import Progress
from mirror_core.dataplane.results import Results, Summary
from mirror_core.dataplane.runner import Runner
from mirror_core.dataplane.watch import Watch
from mirror_core.evidence import receipts
from mirror_core.evidence.folders import is_url, local_folder
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.clock import now_ms
from mirror_core.model.copying import TaskReport
from mirror_core.model.errors import BadRequest, Indeterminate, LostOwnership, MirrorError, RemoteFault, Unwritten
from mirror_core.model.logs import about, logger
from mirror_core.model.names import Offset, Partition
from mirror_core.state.lease import HeldLease, acquire, kept, new_owner
from mirror_core.state.link import Link
from mirror_core.sync.following import Follower
from mirror_core.sync.identity import check_identity

_log = logger(__name__)

EPOCH_S: Final = 30.0
LEAD_S: Final = 2.0
_TICK_S: Final = 0.1
_LAST_WORDS_S, _AFTER_FAILURE_S = 10.0, 1.0
_MARGIN_MS: Final = 1_000
"""Added to a task's stop in the promise of its last write."""
_EPOCHS: Final = 5
"""Consecutive failed epochs, before the supervisor starts a new driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    until_caught_up: bool = False
    receipts: str | None = None
    """Folder or URL."""
    epoch_s: float = EPOCH_S
    progress: Progress | None = None


@dataclass(slots=True)
class _Running:
    epoch: Epoch
    tasks: Future[tuple[TaskReport, ...]]


class Replication:
    def __init__(
        self,
        link: Link,
        start_runner: Callable[[], Runner],
        options: Options,
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        counters: Counters | None = None,
    ) -> None:
        self.link = link
        self.start_runner = start_runner
        self.options = options
        self.stop = stop
        self.say = say
        self.counters = counters or Counters()
        self.results = Results(link, self.counters, say)
        self._length = Length(options.epoch_s, say)
        self._running: list[_Running] = []
        self._number = 0
        self._failures_in_row = 0
        self._has_copied = False
        self._untold = ""
        self._patience = Patience()

    def run(self) -> Summary:
        """Raises LostOwnership when another process takes the mirror."""
        source, destination = (ClusterClient(one, timeout_s=10.0) for one in (self.link.source, self.link.destination))
        with about(mirror=self.link.mirror.name), self._patience.lending(source, destination):
            return self._run(source, destination)

    def _run(self, source: ClusterClient, destination: ClusterClient) -> Summary:
        started = time.monotonic()
        check_identity(self.link, source, destination)
        planner = Planner(self.link, source, destination)
        if self.options.receipts is not None and not is_url(self.options.receipts):
            local_folder(self.options.receipts).check("receipts", receipts.ADVICE)
        check_data_principal(self.link)
        with self._lease() as lease, Watch(self.link, lease, self.say) as self._watch:
            self.counters.watches(self._watch)
            if not self.options.until_caught_up:
                self._watch.prepare(lease)
            # Find bad requests before Spark takes seconds to start.
            began = time.monotonic()
            source.hurries(not self.options.until_caught_up)  # nothing is copied before the first plan
            work = self._plan(planner, lease)
            planned_s = time.monotonic() - began
            if not self.options.until_caught_up:
                self._watch.start()
            with self._runner(lease) as self.runner:
                first = time.monotonic()
                if self.options.until_caught_up:
                    self._catch_up(planner, lease, work)
                else:
                    with Follower(self.link, lambda: self.counters.retried(Retry.GROUPS)) as self._follower:
                        self._go_on(planner, lease, work, planned_s)
                    with suppress(Unwritten):  # counts as its own once the source has it, too
                        self._follower.last_words(lease)
        summary, now = self.results.summary, time.monotonic()
        summary.seconds, summary.copy_seconds = now - started, now - first
        return summary

    # -- before anything is copied -------------------------------------------------------------------------------

    @contextmanager
    def _lease(self) -> Iterator[HeldLease]:
        may_run = partial(refuse_to_run, link=self.link)
        with kept(acquire(self.link.destination, self.link.mirror.name, new_owner(), may_run)) as lease:
            may_run(lease.state)  # a run may have started
            lease.may_go_on = may_run
            self.counters.holds(lease)
            yield lease

    @contextmanager
    def _runner(self, lease: HeldLease) -> Iterator[Runner]:
        runner = self._patience.until_done(lease, self.start_runner)
        lost = False
        try:
            if self.options.receipts is not None:
                folder = runner.folder(self.options.receipts)
                self._patience.until_done(lease, lambda: folder.check("receipts", receipts.ADVICE))
                self.results.receipts.open(folder)
            with Channel(runner.listening, ears(self.results.board, self.options.progress)) as self._channel:
                yield runner
        except LostOwnership:
            lost = True
            raise
        finally:
            runner.close()
            if not lost:
                self._reap(lease, final=True)
            self.results.receipts.close(None if lost else lease, _LAST_WORDS_S)

    # -- epochs --------------------------------------------------------------------------------------------------

    def _catch_up(self, planner: Planner, lease: HeldLease, work: Work) -> None:
        ends = dict(work.ends)
        if not ends and not work.failed and not work.undecided:
            raise Indeterminate(
                f"mirror {self.link.mirror.name}: no topic on cluster {self.link.source.name} matches its filters now; "
                "nothing was copied"
            )
        while not self.stop.is_set():
            left = {
                p: ends[p]
                for p in work.partitions
                # Partitions without lag are checked once, too: others may have written.
                if p in ends
                and p not in self.results.summary.failed
                and self.results.summary.positions.get(p, -1) < ends[p]
            }
            if not left:
                self.results.summary.undecided = work.undecided
                self.results.summary.caught_up = not work.undecided
                break
            now = now_ms()
            self._submit(lease, work, left, now, now + int(self._length.s * 1000))
            while self._running and not self.stop.is_set():
                lease.beat()
                self._reap(lease)
                time.sleep(_TICK_S / 5)
        lease.refresh()
        self.results.remember(lease)
        self._follow_log_start(planner, lease, work, None)
        self._watch.look_once(lease, planner.source, planner.destination)

    def _go_on(self, planner: Planner, lease: HeldLease, work: Work, planned_s: float) -> None:
        start_ms, began = now_ms(), time.monotonic() - planned_s
        while not self.stop.is_set():
            stop_ms = start_ms + int(self._length.s * 1000)
            ends = time.monotonic() + (stop_ms - now_ms()) / 1000  # the wall clock may be set
            if self._begun(lease, work, start_ms, stop_ms):
                # A far plan takes seconds, and must end before the boundary.
                lead_s = min(LEAD_S + time.monotonic() - began, self.options.epoch_s / 2)
                self._follow_log_start(planner, lease, work, stop_ms - int(lead_s * 1000))
                ends = self._tend(lease, ends, lead_s)
            else:
                self._await_writes(lease)
                ends = time.monotonic()
            if self.stop.is_set():
                return
            # Without running tasks the plan may take long.
            boundary_ms, began = _wall_ms(ends) if self._running else None, time.monotonic()
            try:
                state = self._patience.until_done(lease, lease.read, boundary_ms)
                refuse_to_run(lease.know(state), self.link)
                planner.source.hurries(False)
                work = self._plan(planner, lease, boundary_ms)
            except RemoteFault as error:  # the next plan may succeed
                self.counters.retried(Retry.PLAN)
                self.say(f"cannot plan anew, going on with the last plan: {error}{planner.hanging()}")
            # Now: counted from before a slow plan, the epoch would be short, or over.
            start_ms = _wall_ms(ends)

    def _begun(self, lease: HeldLease, work: Work, start_ms: int, stop_ms: int) -> bool:
        """False when the state topic cannot record until when tasks would write."""
        try:
            if work.partitions:
                self._submit(lease, work, None, start_ms, stop_ms)
            else:
                self.results.idle(lease)
        except Unwritten as error:
            self._unwritten(lease, error)
            return False
        return True

    def _tend(self, lease: HeldLease, ends: float, lead_s: float) -> float:
        """Renews the lease until it is time to plan; returns the epoch's end (monotonic).

        While the state topic rejects writes, running tasks go on as long as was promised, and none starts.
        """
        failures = self._failures_in_row
        while not self.stop.is_set() and time.monotonic() < ends - lead_s:
            try:
                self._tick(lease)
            except Unwritten as error:
                self._unwritten(lease, error)
            self.stop.wait(_TICK_S)
            if self._failures_in_row > failures:  # nobody copies now: don't wait for the boundary
                self.stop.wait(_AFTER_FAILURE_S * self._failures_in_row)
                return time.monotonic()
        return ends

    def _tick(self, lease: HeldLease) -> None:
        lease.beat()
        if self._untold:
            self._untold = ""
            self.say("the state topic is written again")
        self._follower.beat(lease)
        self._watch.tick(lease)
        self._reap(lease)

    def _await_writes(self, lease: HeldLease) -> None:
        while not self.stop.wait(_TICK_S):
            with suppress(Unwritten):
                return self._tick(lease)

    def _unwritten(self, lease: HeldLease, error: Unwritten) -> None:
        if not self._untold:
            self.counters.retried(Retry.STATE)
            left_s = max(0, lease.lease.writers_until_ms - now_ms()) / 1000
            self.say(f"copying goes on for {left_s:.0f} s at most, and then waits until this is over: {error}")
        self._untold = str(error)

    def _follow_log_start(self, planner: Planner, lease: HeldLease, work: Work, until_ms: int | None) -> None:
        try:
            found = self._patience.until_done(lease, lambda: planner.follow_log_start(work.partitions), until_ms)
            self.results.found(lease, found, planner.unmoved)
        except RemoteFault as error:
            _log.info("log starts could not be read; the next epoch reads them again: %s", error)

    def _plan(self, planner: Planner, lease: HeldLease, until_ms: int | None = None) -> Work:
        self.results.remember(lease)
        plan = partial(planner.plan, lease.state, all_ends=self.options.until_caught_up)
        work = self._patience.until_done(lease, plan, until_ms)
        if work.changes:
            lease.put(*work.changes)
        self.results.count_states(lease)
        self._watch.planned(lease)
        self.results.planned(work, newest=self._number)
        return work

    def _submit(
        self, lease: HeldLease, work: Work, until: dict[Partition, Offset] | None, start_ms: int, stop_ms: int
    ) -> None:
        partitions = work.partitions if until is None else {p: work.partitions[p] for p in until}
        lags = {p: work.lags.get(p, 0) for p in partitions if p not in self.results.summary.failed}
        if not lags:
            return
        lease.beat(writers_until_ms=stop_ms + _MARGIN_MS)
        self._number += 1
        epoch = Epoch(
            number=self._number,
            start_ms=start_ms,
            stop_ms=stop_ms,
            throttle=lease.state.mirrors[self.link.mirror.name].throttle,
            driver=self._channel.at(self._number),
            looks_s=self._length.looks_s,
        )
        given = {
            p: replace(partitions[p], until=(until or {}).get(p), answered=p in self.results.answered) for p in lags
        }
        assignments = assignments_of(self.link, epoch, given, lags, self.runner.slots)
        self._running.append(_Running(epoch, self.runner.submit(assignments)))

    # -- reports -------------------------------------------------------------------------------------------------

    def _reap(self, lease: HeldLease, *, final: bool = False) -> None:
        """On the way out (`final`) nothing is raised: the reason to leave is already on its way."""
        if not final:
            self.results.receipts.tell(lease)
        wait((one.tasks for one in self._running), timeout=_LAST_WORDS_S if final else 0)
        for one in [running for running in self._running if running.tasks.done()]:
            self._running.remove(one)
            try:
                reports = one.tasks.result()
            except LostOwnership:
                if not final:
                    raise
            except BadRequest as error:
                if not (final or self._has_copied):
                    raise
                if self._has_copied:  # the configuration was right: secrets are being replaced
                    self._epoch_failed(lease, one.epoch, error, final=final)
            except MirrorError as error:
                self._epoch_failed(lease, one.epoch, error, final=final)
            else:
                self._failures_in_row, self._has_copied = 0, True
                self._length.heard(one.epoch, reports)
                number, start_ms = one.epoch.number, one.epoch.start_ms
                self.results.take(lease, number, start_ms, reports, newest=self._number, final=final)
        self.results.count(lease, final=final)

    def _epoch_failed(self, lease: HeldLease, epoch: Epoch, error: MirrorError, *, final: bool) -> None:
        _log.info("failed%s: %s", " at the end" if final else "", error, epoch=epoch.number)
        self.results.lost(lease, epoch.number, str(error))
        if final:
            return  # cancelled on purpose
        self._failures_in_row += 1
        self.counters.retried(Retry.EPOCH)
        self.say(f"epoch {epoch.number} failed, the next one looks at the destination: {error}")
        if self._failures_in_row >= _EPOCHS or not (error.retryable or isinstance(error, RemoteFault | BadRequest)):
            raise error  # another epoch would fail, too (Spark's process is gone)


def _wall_ms(ends: float) -> int:
    return now_ms() + max(0, round((ends - time.monotonic()) * 1000))

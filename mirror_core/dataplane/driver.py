"""The data plane's driver.

The next epoch's tasks connect before the boundary, and start when the old ones stop by their own clock. Where clocks
are wrong, the sequences refuse.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from mirror_core.dataplane.counters import Counters, RetriedWork
from mirror_core.dataplane.datagram_receiver import DatagramReceiver, build_handlers
from mirror_core.dataplane.epoch_planner import CopyEpoch, CopyPlan, Planner, build_assignments
from mirror_core.dataplane.epoch_results import EpochLength, EpochResults, ReplicationSummary
from mirror_core.dataplane.progress import ProgressTracker
from mirror_core.dataplane.source_monitor import SourceWatch
from mirror_core.dataplane.task_runner import Runner
from mirror_core.decide.command_rules import explain_held_by, explain_not_copied, explain_preparing
from mirror_core.decide.fence_state import has_failed_over
from mirror_core.decide.mirror_change import list_paused_topics
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import is_url, open_local_folder
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.model.errors import (
    BadRequest,
    HeldByRun,
    Indeterminate,
    LostOwnership,
    MirrorError,
    Refused,
    RemoteFault,
    StateNotWritten,
    Unreachable,
)
from mirror_core.model.logs import get_logger, log_context
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunKind
from mirror_core.model.task_messages import TaskReport
from mirror_core.model.timing import now_ms, read_steady_s
from mirror_core.state.lease import HeldLease, acquire_lease, make_owner_name, read_hold_clock_ms, release_at_end
from mirror_core.state.mirror_link import MirrorLink, check_cluster_ids
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import State
from mirror_core.sync.offset_follower import OffsetFollower

WorkResult = TypeVar("WorkResult")
_RENEW_INTERVAL_S: Final = 0.1
_TAKEOVER_STEPS: Final = ("drain", "settle")
"""From these steps on a failover has the data plane to itself: the lease that they take expires."""


class Closeable(Protocol):
    def close(self) -> None: ...


class LeaseKeepalive:
    """One call at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="at-work")
        self._current_work: Future[Any] = Future()
        self._current_work.set_result(None)

    def run_renewing(
        self, lease: HeldLease, work: Callable[[], WorkResult], until_s: float | None = None
    ) -> WorkResult:
        """Runs `work` in another thread.

        Raises Unreachable when it is not done by `until_s` (steady clock): a late result is outdated. Nothing else
        starts before it has ended. Raises LostOwnership like the lease.
        """
        if not self._current_work.done():
            raise Unreachable("the last look at both clusters is not over yet")
        self._current_work = future = self._pool.submit(copy_context().run, work)
        while not future.done():
            if until_s is not None and read_steady_s() >= until_s:
                raise Unreachable("the look at both clusters is not over yet")
            with suppress(StateNotWritten):  # the next writer raises it
                lease.renew()
            wait((future,), timeout=_RENEW_INTERVAL_S)
        return future.result()

    @contextmanager
    def close_after_work(self, *resources: Closeable) -> Iterator[None]:
        """Once the work has ended; does not wait: a hung call may open connections later."""
        try:
            yield
        finally:
            self._pool.shutdown(wait=False)
            for resource in resources:
                self._current_work.add_done_callback(partial(_close_resource, resource))


def _close_resource(resource: Closeable, _: Future[Any]) -> None:
    resource.close()


_log = get_logger(__name__)
EPOCH_S: Final = 30.0
PLAN_LEAD_S: Final = 2.0
_TICK_S: Final = 0.1
_CLOSE_TIMEOUT_S, _FAILURE_PAUSE_S = 10.0, 1.0
_STOP_MARGIN_S: Final = 1.0
"""Added to a task's stop in the promise of its last write."""
_MAX_FAILED_EPOCHS: Final = 5
"""Consecutive ones, before the supervisor starts a new driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    until_caught_up: bool = False
    receipts: str | None = None
    """Folder or URL."""
    epoch_s: float = EPOCH_S
    progress: ProgressTracker | None = None


@dataclass(slots=True)
class _RunningEpoch:
    epoch: CopyEpoch
    start_s: float
    """Steady clock."""
    partitions: Set[Partition]
    tasks: Future[tuple[TaskReport, ...]]


class Replication:
    def __init__(
        self,
        link: MirrorLink,
        start_runner: Callable[[], Runner],
        options: ReplicationOptions,
        *,
        stop: threading.Event,
        report_line: Callable[[str], None],
        counters: Counters | None = None,
    ) -> None:
        self.link = link
        self.start_runner = start_runner
        self.options = options
        self.stop = stop
        self.report_line = report_line
        self.counters = counters or Counters()
        self.results = EpochResults(link, self.counters, report_line)
        self._length = EpochLength(options.epoch_s, report_line)
        self._running: list[_RunningEpoch] = []
        self._leaving: set[Partition] = set()
        self._written_until_s: dict[Partition, float] = {}
        """Steady clock: until when the tasks that were given a partition may append."""
        self._epoch_number = 0
        self._failures_in_row = 0
        self._has_copied = False
        self._unwritten_reason = ""
        self._keepalive = LeaseKeepalive()

    def run(self) -> ReplicationSummary:
        """Raises LostOwnership when another process takes the mirror."""
        source, destination = (
            ClusterClient(cluster, timeout_s=10.0) for cluster in (self.link.source, self.link.destination)
        )
        with log_context(mirror=self.link.mirror.name), self._keepalive.close_after_work(source, destination):
            return self._run(source, destination)

    def _run(self, source: ClusterClient, destination: ClusterClient) -> ReplicationSummary:
        started = time.monotonic()
        check_cluster_ids(self.link, source, destination)
        mirror = self.link.mirror.name
        hold_ms = self.link.config.deletion_hold_ms(mirror)
        planner = Planner(self.link, source, destination, hold_ms=hold_ms, leaving=self._leaving)
        if self.options.receipts is not None and not is_url(self.options.receipts):
            open_local_folder(self.options.receipts).check("receipts", receipt_files.RECEIPTS_ADVICE)
        check_data_principal(self.link)
        with (
            self._lease() as lease,
            SourceWatch(self.link, lease, self.report_line, self.results.copies) as self._watch,
        ):
            planner.read_broker_clock_ms = lambda: read_hold_clock_ms(self.link.destination, lease.read(), mirror)
            planner.may_be_written = partial(self._may_be_written, lease)
            self.counters.set_watch(self._watch)
            if not self.options.until_caught_up:
                self._watch.prepare(lease)
            # Find bad requests before Spark takes seconds to start.
            plan_started = time.monotonic()
            source.set_fail_fast(not self.options.until_caught_up)  # nothing is copied before the first plan
            work = self._plan(planner, lease)
            planned_s = time.monotonic() - plan_started
            if not self.options.until_caught_up:
                self._watch.start()
            with self._runner(lease) as self.runner:
                copy_started = time.monotonic()
                if self.options.until_caught_up:
                    self._catch_up(planner, lease, work)
                else:
                    with OffsetFollower(
                        self.link, lambda: self.counters.count_retry(RetriedWork.GROUPS)
                    ) as self._follower:
                        self._run_epochs(planner, lease, work, planned_s)
                    with suppress(StateNotWritten):  # counts as its own once the source has it, too
                        self._follower.write_final_progress(lease)
        summary, now = self.results.summary, time.monotonic()
        summary.seconds, summary.copy_seconds = now - started, now - copy_started
        return summary

    # -- before anything is copied -------------------------------------------------------------------------------

    @contextmanager
    def _lease(self) -> Iterator[HeldLease]:
        may_run = partial(check_may_run, link=self.link)
        with release_at_end(
            acquire_lease(self.link.destination, self.link.mirror.name, make_owner_name(), may_run)
        ) as lease:
            may_run(lease.state)  # a run may have started
            lease.check_may_write = may_run
            self.counters.set_lease(lease)
            yield lease

    @contextmanager
    def _runner(self, lease: HeldLease) -> Iterator[Runner]:
        runner = self._keepalive.run_renewing(lease, self.start_runner)
        is_lost = False
        try:
            if self.options.receipts is not None:
                folder = runner.folder(self.options.receipts)
                self._keepalive.run_renewing(lease, lambda: folder.check("receipts", receipt_files.RECEIPTS_ADVICE))
                self.results.receipts.start(folder)
            with DatagramReceiver(
                runner.listening,
                build_handlers(
                    self.results.claim_board, self.options.progress, self._watch.reported_ends, self.results.copies
                ),
            ) as self._channel:
                try:
                    yield runner
                finally:
                    # While tasks can be asked to end. Where no datagram ever came, none would hear it.
                    if runner.close(are_asked=self._channel.stop_tasks()):
                        lease.expect_own_writers()
        except LostOwnership:
            is_lost = True
            raise
        finally:
            runner.close()
            if not is_lost:
                self._collect_reports(lease, final=True)
                with suppress(MirrorError):  # the next process compares more
                    self._watch.record_reported_ends(lease)
            self.results.receipts.close(None if is_lost else lease, _CLOSE_TIMEOUT_S)

    # -- epochs --------------------------------------------------------------------------------------------------

    def _catch_up(self, planner: Planner, lease: HeldLease, work: CopyPlan) -> None:
        ends = dict(work.ends)
        mirror = planner.link.mirror
        paused = list_paused_topics(mirror, lease.state.partitions.get(mirror.name, {}))
        if paused:
            self.report_line(f"not copied, since paused: {join_limited(paused)}")
        if not (ends or work.failed or work.undecided_topics or paused):
            raise Indeterminate(
                f"mirror {self.link.mirror.name}: no topic on cluster {self.link.source.name} matches its filters now; "
                "nothing was copied"
            )
        while not self.stop.is_set():
            remaining = {
                p: ends[p]
                for p in work.partitions
                # Partitions without lag are checked once, too: others may have written.
                if p in ends
                and p not in self.results.summary.failed
                and self.results.summary.positions.get(p, -1) < ends[p]
            }
            if not remaining:
                self.results.summary.undecided = work.undecided_topics
                self.results.summary.caught_up = not (work.undecided_topics or paused)
                break
            now_s = read_steady_s()
            self._submit(lease, work, remaining, now_s, now_s + self._length.seconds)
            while self._running and not self.stop.is_set():
                lease.renew()
                self._collect_reports(lease)
                time.sleep(_TICK_S / 5)
        lease.refresh()
        self.results.record_alignment(lease)
        self._follow_log_start(planner, lease, work, None)
        self._watch.observe_once(lease, planner.source, planner.destination)

    def _run_epochs(self, planner: Planner, lease: HeldLease, work: CopyPlan, planned_s: float) -> None:
        start_s = read_steady_s()
        plan_started_s = start_s - planned_s
        while not self.stop.is_set():
            end_s = start_s + self._length.seconds
            if self._start_epoch(lease, work, start_s, end_s):
                # A far plan takes seconds, and must end before the boundary.
                lead_s = min(PLAN_LEAD_S + read_steady_s() - plan_started_s, self.options.epoch_s / 2)
                self._follow_log_start(planner, lease, work, end_s - lead_s)
                end_s = self._run_epoch(lease, end_s, lead_s)
            else:
                self._await_writes(lease)
                end_s = read_steady_s()
            if self.stop.is_set():
                return
            plan_started_s = read_steady_s()
            # Without running tasks the plan may take long.
            boundary_s = max(end_s, plan_started_s) if self._running else None
            try:
                state = self._keepalive.run_renewing(lease, lease.read, boundary_s)
                check_may_run(lease.adopt_state(state), self.link)
                planner.source.set_fail_fast(False)
                work = self._plan(planner, lease, boundary_s)
            except RemoteFault as error:  # the next plan may succeed
                self.counters.count_retry(RetriedWork.PLAN)
                self.report_line(
                    f"cannot plan anew, going on with the last plan: {error}{planner.format_silent_brokers()}"
                )
            # Now: counted from before a slow plan, the epoch would be short, or over.
            start_s = max(end_s, read_steady_s())

    def _start_epoch(self, lease: HeldLease, work: CopyPlan, start_s: float, stop_s: float) -> bool:
        """False when the state topic cannot record until when tasks would write."""
        try:
            if work.partitions:
                self._submit(lease, work, None, start_s, stop_s)
            else:
                self.results.report_nothing_to_copy(lease)
        except StateNotWritten as error:
            self._report_unwritten(lease, error)
            return False
        return True

    def _run_epoch(self, lease: HeldLease, end_s: float, lead_s: float) -> float:
        """Renews the lease until it is time to plan; returns the epoch's end (steady clock)."""
        failures = self._failures_in_row
        while not self.stop.is_set() and read_steady_s() < end_s - lead_s:
            try:
                self._tick(lease)
            except StateNotWritten as error:
                self._report_unwritten(lease, error)
            self.stop.wait(_TICK_S)
            if self._failures_in_row > failures:  # nobody copies now: don't wait for the boundary
                self.stop.wait(_FAILURE_PAUSE_S * self._failures_in_row)
                return read_steady_s()
        return end_s

    def _tick(self, lease: HeldLease) -> None:
        lease.renew()
        if self._unwritten_reason:
            self._unwritten_reason = ""
            self.report_line("the state topic is written again")
        self._follower.exchange_state(lease)
        self._watch.tick(lease)
        self._collect_reports(lease)

    def _await_writes(self, lease: HeldLease) -> None:
        while not self.stop.wait(_TICK_S):
            with suppress(StateNotWritten):
                return self._tick(lease)

    def _report_unwritten(self, lease: HeldLease, error: StateNotWritten) -> None:
        if not self._unwritten_reason:
            self.counters.count_retry(RetriedWork.STATE)
            left_s = max(0.0, lease.writers_end_s - read_steady_s())
            self.report_line(f"copying goes on for {left_s:.0f} s at most, and then waits until this is over: {error}")
        self._unwritten_reason = str(error)

    def _follow_log_start(self, planner: Planner, lease: HeldLease, work: CopyPlan, until_s: float | None) -> None:
        try:
            failures = self._keepalive.run_renewing(lease, lambda: planner.follow_log_start(work.partitions), until_s)
            self.results.record_log_starts(lease, planner.changed_starts, planner.changed_holds)
            self._keepalive.run_renewing(lease, planner.move_log_starts, until_s)
            self.results.record_failures(lease, failures, planner.unmoved_starts)
        except RemoteFault as error:
            _log.info("log starts could not be read; the next epoch reads them again: %s", error)
        self.results.count_early_deletions(lease, planner.destination_starts)

    def _plan(self, planner: Planner, lease: HeldLease, until_s: float | None = None) -> CopyPlan:
        self._handle_replaced_copies(lease)
        self.results.record_alignment(lease)
        plan = partial(planner.plan, lease.state, all_ends=self.options.until_caught_up)
        work = self._keepalive.run_renewing(lease, plan, until_s)
        if work.changes:
            lease.put(*work.changes)
        self._handle_replaced_copies(lease)  # also with what was aligned, which the source monitor compares with
        self.results.count_states(lease)
        self._watch.apply_plan(lease)
        self.results.apply_plan(work, newest_epoch=self._epoch_number)
        return work

    def _handle_replaced_copies(self, lease: HeldLease) -> None:
        if partitions := self._watch.update_recorded(lease, self._epoch_number):
            self.results.forget_copies(partitions)
            if self.options.progress:
                self.options.progress.forget(partitions)

    def _may_be_written(self, lease: HeldLease, partition: Partition) -> bool:
        until_s = max(lease.old_writers_end_s, self._written_until_s.get(partition, 0.0))
        return read_steady_s() <= until_s or any(partition in running.partitions for running in list(self._running))

    def _submit(
        self, lease: HeldLease, work: CopyPlan, ends: dict[Partition, Offset] | None, start_s: float, stop_s: float
    ) -> None:
        """`start_s`, `stop_s`: steady clock. Tasks get times by the wall clock as it is now."""
        partitions = work.partitions if ends is None else {p: work.partitions[p] for p in ends}
        skipped = self.results.summary.failed.keys() | self._leaving
        lags = {p: work.lags.get(p, 0) for p in partitions if p not in skipped}
        if not lags:
            return
        lease.renew(writers_end_s=stop_s + _STOP_MARGIN_S)
        self._epoch_number += 1
        submitted_ms = now_ms()
        if self._watch.monitor.pop_interruption():
            self.results.answered_partitions.clear()  # also of partitions that this epoch does not copy
        start_ms = submitted_ms + round((start_s - read_steady_s()) * 1000)
        epoch = CopyEpoch(
            number=self._epoch_number,
            submitted_ms=submitted_ms,
            start_ms=start_ms,
            stop_ms=start_ms + round((stop_s - start_s) * 1000),
            throttle=lease.state.mirrors[self.link.mirror.name].throttle,
            driver=self._channel.address_for(self._epoch_number, submitted_ms),
            comparison_grace_s=self._length.comparison_grace_s,
        )
        assigned_partitions = {
            p: replace(
                partitions[p],
                stop_offset=(ends or {}).get(p),
                all_answered=p in self.results.answered_partitions,
                compare_from=self._watch.reported_ends.take_comparison_start(p),
            )
            for p in lags
        }
        assignments = build_assignments(self.link, epoch, assigned_partitions, lags, self.runner.slots)
        self._written_until_s.update(dict.fromkeys(lags, stop_s + _STOP_MARGIN_S))
        self._running.append(_RunningEpoch(epoch, start_s, lags.keys(), self.runner.submit(assignments)))

    # -- reports -------------------------------------------------------------------------------------------------

    def _collect_reports(self, lease: HeldLease, *, final: bool = False) -> None:
        """With `final` nothing is raised: the reason to leave is already on its way."""
        if not final:
            self.results.receipts.write_heads(lease)
        wait((running_epoch.tasks for running_epoch in self._running), timeout=_CLOSE_TIMEOUT_S if final else 0)
        for running_epoch in [candidate for candidate in self._running if candidate.tasks.done()]:
            self._running.remove(running_epoch)
            try:
                reports = running_epoch.tasks.result()
            except LostOwnership:
                if not final:
                    raise
            except BadRequest as error:
                if not (final or self._has_copied):
                    raise
                if self._has_copied:  # the configuration was right: secrets are being replaced
                    self._handle_epoch_failure(lease, running_epoch.epoch, error, final=final)
            except MirrorError as error:
                self._handle_epoch_failure(lease, running_epoch.epoch, error, final=final)
            else:
                self._failures_in_row, self._has_copied = 0, True
                self._length.update(running_epoch.epoch, reports)
                number, lasted_s = running_epoch.epoch.number, max(0.0, read_steady_s() - running_epoch.start_s)
                self._watch.reported_ends.add_reports(number, reports)
                self.results.add_epoch(
                    lease,
                    number,
                    lasted_s,
                    reports,
                    partitions=running_epoch.partitions,
                    newest_epoch=self._epoch_number,
                    final=final,
                )
        self.results.record_trimmed(lease, final=final)

    def _handle_epoch_failure(self, lease: HeldLease, epoch: CopyEpoch, error: MirrorError, *, final: bool) -> None:
        _log.info("failed%s: %s", " at the end" if final else "", error, epoch=epoch.number)
        self.results.handle_lost_epoch(lease, epoch.number, str(error))
        if final:
            return  # cancelled on purpose
        self._failures_in_row += 1
        self.counters.count_retry(RetriedWork.EPOCH)
        self.report_line(f"epoch {epoch.number} failed, the next one looks at the destination: {error}")
        if self._failures_in_row >= _MAX_FAILED_EPOCHS or not (
            error.retryable or isinstance(error, RemoteFault | BadRequest)
        ):
            raise error  # another epoch would fail, too (Spark's process is gone)


def check_data_principal(link: MirrorLink) -> None:
    """Raises when a cluster rejects its login."""
    for cluster in (link.source, link.destination):
        with ClusterClient(cluster, Principal.DATA, timeout_s=10.0) as client:
            client.metadata(())


def check_may_run(state: State, link: MirrorLink) -> None:
    """Raises Refused when the mirror must not be copied now."""
    name = link.mirror.name
    mirror = state.mirrors.get(name)
    run = state.active_run(name)
    pending_fence = state.pending_fences.get(name)
    if mirror is None:
        raise Refused(f"mirror {name}", ["it has been deleted"], reason_code="mirror_deleted")
    # Until a failover takes over, the data plane keeps the lag small.
    is_taken_over = run is not None and any((run.id, step) in state.steps for step in _TAKEOVER_STEPS)
    if run is not None and (run.plan.kind is not RunKind.FAILOVER or is_taken_over):
        holder = explain_held_by(run, observe_conductor(link.destination, state, run), list_run_verbs(state, run))
        raise HeldByRun(f"mirror {name}: replicate", [f"{holder}; it copies the rest itself"])
    if mirror.is_preparing:
        raise HeldByRun(f"mirror {name}: replicate", [explain_preparing(mirror)])
    if mirror.desired is not DesiredState.STARTED:
        reason = explain_not_copied(mirror, has_failed_over=has_failed_over(pending_fence))
        raise Refused(f"mirror {name}", [reason], reason_code="mirror_not_started")
    if run is None and pending_fence is not None and pending_fence.action is FenceAction.LIFT:
        # Nobody can write there until the fence is lifted.
        problem = f"cluster {pending_fence.cluster} still has the fence of run {pending_fence.run}, which was given up"
        raise Refused(
            f"mirror {name}",
            [f"{problem}: `mirrorbook mirror watch {name}` lifts it when it answers"],
            reason_code="fence_not_lifted",
        )

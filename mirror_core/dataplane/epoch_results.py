"""What task reports change: sums, receipts, partition states, metrics, messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from mirror_core.copy.driver_messages import ClaimBoard, CurrentCopies
from mirror_core.dataplane.counters import Counters, RetriedWork
from mirror_core.dataplane.epoch_planner import COPIED_STATES, CopyEpoch, CopyPlan, mark_aligned, mark_failed
from mirror_core.dataplane.receipt_writer import ReceiptWriter
from mirror_core.decide.clock_skew import to_broker_clock_ms
from mirror_core.decide.deletion_hold import find_early_deletions, format_held_deletions
from mirror_core.decide.failover_readiness import list_newest_times
from mirror_core.decide.gaps_and_resume import count_deletions, sum_never_copied
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.task_assignment import MAX_EPOCH_S, compute_comparison_s, compute_epoch_s
from mirror_core.model.errors import Indeterminate, MirrorError, PartitionFailed
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import HeldDeletion, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import AlignedPartition, PartitionFailure, TaskReport, TrimmedRange
from mirror_core.model.text import format_count, format_duration_ms, format_items
from mirror_core.model.timing import now_ms
from mirror_core.state.lease import HeldLease
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import PartitionRecord
from mirror_core.sync.topic_compaction import TopicRelaxation

_log = get_logger(__name__)
MAX_LISTED_WAITS: Final = 5
MAX_WAIT_CHARS: Final = 500
_NO_REASONS: Final[Mapping[Partition, str]] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class ReplicationSummary:
    seconds: float = 0.0
    copy_seconds: float = 0.0
    epochs: int = 0
    records: int = 0
    bytes: int = 0
    cpu_s: float = 0.0
    positions: dict[Partition, Offset] = field(default_factory=dict)
    failed: dict[Partition, str] = field(default_factory=dict)
    never_copied: dict[Partition, int] = field(default_factory=dict)
    """Trimmed on the source before they were copied; recorded by this process."""
    undecided: tuple[str, ...] = ()
    caught_up: bool = False


class EpochResults:
    def __init__(self, link: MirrorLink, counters: Counters, report_line: Callable[[str], None]) -> None:
        self.link = link
        self.summary = ReplicationSummary()
        self.counters = counters
        self.report_line = report_line
        self.receipts = ReceiptWriter(link.mirror.name, report_line, lambda: counters.count_retry(RetriedWork.RECEIPTS))
        self._aligned: dict[Partition, AlignedPartition] = {}
        self.copies = CurrentCopies()
        self.claim_board = ClaimBoard(self.copies)
        self._undecided: tuple[str, ...] = ()
        self._trimmed_ranges: dict[TrimmedRange, None] = {}
        self.answered_partitions: set[Partition] = set()
        """All their requests were answered, since this process started."""
        self._newest_ended = 0
        """Newest epoch that ended. Older tasks may still compare logs, and know less."""
        self._recovered_after: dict[Partition, int] = {}
        """For each recovered partition, the newest epoch that did not know it."""
        self._easing = TopicRelaxation(link.source, link.destination, report_line)
        self._unmoved_starts: dict[Partition, str] = {}
        self._reported: dict[Partition, str] = {}

    def record_alignment(self, lease: HeldLease) -> None:
        """Before anything else: the leader epochs under which partitions agree with the source."""
        statuses = lease.state.partitions.get(self.link.mirror.name, {})
        aligned_statuses = {
            p: mark_aligned(statuses[p], alignment)
            for p, alignment in self._aligned.items()
            if p in statuses and statuses[p].state in COPIED_STATES
        }
        records = [
            PartitionRecord(self.link.mirror.name, status)
            for p, status in aligned_statuses.items()
            if status != statuses[p]
        ]
        if records:
            lease.put(*records)
        self._aligned.clear()

    def add_epoch(
        self,
        lease: HeldLease,
        epoch: int,
        lasted_s: float,
        reports: tuple[TaskReport, ...],
        *,
        partitions: Set[Partition],
        newest_epoch: int,
        final: bool,
    ) -> None:
        self.summary.epochs += 1
        receipts = [receipt for report in reports for receipt in report.receipts]
        for receipt in receipts:
            self.summary.records += receipt.records
            self.summary.bytes += receipt.bytes
            self.summary.positions[receipt.partition] = receipt.next
        self.summary.cpu_s += sum(report.cpu_s for report in reports)
        self.counters.count_epoch(reports, lasted_s)
        aligned = [alignment for report in reports for alignment in report.aligned]
        self._aligned.update(
            (alignment.partition, alignment)
            for alignment in aligned
            if self._is_current_copy(epoch, alignment.partition)
        )
        self._trimmed_ranges.update(
            (trimmed, None)
            for report in reports
            for trimmed in report.trimmed_ranges
            if self.copies.includes(trimmed.partition, epoch)
        )
        answered = {a.partition for a in aligned if a.all_answered and self.copies.includes(a.partition, epoch)}
        if epoch >= self._newest_ended:
            self.answered_partitions.update(answered)
            self._newest_ended = epoch
        self.answered_partitions.difference_update(partitions - answered)  # a failed task does not report what it sent
        self.receipts.add(lease.generation, epoch, receipts)
        _log.debug("ended: %d receipts", len(receipts), epoch=epoch)
        for number, report in enumerate(reports):
            if report.retry_reason:
                _log.info(
                    "ended early, and goes on in the next epoch: %s", report.retry_reason, epoch=epoch, task=number
                )
            if report.retry_reason and not final:
                self.report_line(f"epoch {epoch}: {report.retry_reason}")
        all_failures = [] if final else [failure for report in reports for failure in report.failures]
        alignment = [failure for failure in all_failures if self._is_current_copy(epoch, failure.partition)]
        failures, eased = list[PartitionFailure](), list[str]()
        for failure in alignment:
            if self._easing.relax_topic(failure, epoch, newest_epoch):
                eased.append(failure.reason)
            else:
                failures.append(failure)
        if epoch >= self._newest_ended:
            lease.waits = format_wait_reasons([*self._undecided, *(report.retry_reason for report in reports), *eased])
        if failures:
            self.record_trimmed(lease, final=final)  # before they are FAILED, which postpones it
            self.record_failures(lease, failures)

    def _is_current_copy(self, epoch: int, partition: Partition) -> bool:
        """A report may be about the copy before a recovery."""
        return epoch > self._recovered_after.get(partition, 0) and self.copies.includes(partition, epoch)

    def forget_copies(self, partitions: Collection[Partition]) -> None:
        self.claim_board.forget(partitions)
        self._trimmed_ranges = {t: None for t in self._trimmed_ranges if t.partition not in partitions}
        self._aligned = {p: alignment for p, alignment in self._aligned.items() if p not in partitions}
        self.answered_partitions.difference_update(partitions)

    def handle_lost_epoch(self, lease: HeldLease, epoch: int, reason: str) -> None:
        self.answered_partitions.clear()
        if epoch >= self._newest_ended:
            lease.waits = format_wait_reasons([*self._undecided, f"epoch {epoch} failed: {reason}"])
        self._newest_ended = max(epoch, self._newest_ended)

    def report_nothing_to_copy(self, lease: HeldLease) -> None:
        lease.waits = format_wait_reasons(self._undecided)

    def record_trimmed(self, lease: HeldLease, *, final: bool) -> None:
        """Tasks that wait for it go on."""
        reported = self.claim_board.get_unrecorded_trims()
        self._trimmed_ranges.update((reported_range, None) for reported_range in reported)
        if not self._trimmed_ranges:
            return
        try:
            self._put_trimmed(lease)
        except MirrorError as error:
            if not final:
                raise
            self._report_unrecorded(str(error))
            return
        self.claim_board.mark_recorded(trimmed for trimmed in reported if trimmed not in self._trimmed_ranges)
        if final and self._trimmed_ranges:
            self._report_unrecorded("they are FAILED")

    def _report_unrecorded(self, reason: str) -> None:
        listed = join_limited(
            f"{trimmed.partition} [{trimmed.first}, {trimmed.next})" for trimmed in self._trimmed_ranges
        )
        self.report_line(
            f"what cluster {self.link.source.name} deleted of these partitions before it was copied is not recorded, "
            f"and may be missing in what is told of them: {listed}: {reason}"
        )

    def _put_trimmed(self, lease: HeldLease) -> None:
        name = self.link.mirror.name
        statuses = lease.state.partitions.get(name, {})
        # Operators change FAILED statuses (`mirror recover`): postponed until it is copied again.
        postponed = {
            trimmed: None
            for trimmed in self._trimmed_ranges
            if trimmed.partition in statuses and statuses[trimmed.partition].state not in COPIED_STATES
        }
        found_ms = to_broker_clock_ms(now_ms(), lease.clock_ahead_ms)
        changed = count_deletions(statuses, self._trimmed_ranges.keys() - postponed.keys(), found_ms)
        self._put_never_copied(lease, statuses, changed)
        self._trimmed_ranges = postponed

    def _put_never_copied(
        self,
        lease: HeldLease,
        statuses: Mapping[Partition, PartitionStatus],
        changed: Mapping[Partition, PartitionStatus],
    ) -> None:
        if not changed:
            return
        name = self.link.mirror.name
        added_offsets = {
            p: sum_never_copied([status]) - sum_never_copied([statuses[p]]) for p, status in changed.items()
        }
        lease.put(*(PartitionRecord(name, status) for status in changed.values()))
        for partition, offsets in added_offsets.items():
            self.summary.never_copied[partition] = self.summary.never_copied.get(partition, 0) + offsets
        self.count_states(lease)
        self.report_line(
            f"cluster {self.link.source.name}: {format_count(sum(added_offsets.values()), 'offset')} deleted there"
            " before they were copied, and on neither side now:"
            f" {join_limited(f'{p} ({n:,})' for p, n in sorted(added_offsets.items()))}"
        )

    def record_failures(
        self,
        lease: HeldLease,
        failures: Sequence[PartitionFailure],
        unmoved_starts: Mapping[Partition, str] = _NO_REASONS,
    ) -> None:
        for partition, reason in unmoved_starts.items():
            if self._unmoved_starts.get(partition) != reason:
                self.report_line(f"copying goes on, and this is tried again: {reason}")
            self._unmoved_starts[partition] = reason
        if not failures:
            return
        statuses = lease.state.partitions.get(self.link.mirror.name, {})
        lease.put(
            *(
                PartitionRecord(self.link.mirror.name, mark_failed(statuses[candidate.partition], candidate))
                for candidate in failures
                if candidate.partition in statuses and statuses[candidate.partition].state in COPIED_STATES
            )
        )
        self.count_states(lease)
        for failure in failures:
            self.report_failure(failure.partition, failure.reason)

    def record_log_starts(
        self, lease: HeldLease, followed: Mapping[Partition, Offset], holds: Mapping[Partition, HeldDeletion | None]
    ) -> None:
        """And since when deletions are held, so that no restart begins a hold anew."""
        name, statuses = self.link.mirror.name, lease.state.partitions.get(self.link.mirror.name, {})
        moved = {p: replace(statuses[p], followed_start=start) for p, start in followed.items() if p in statuses}
        held_statuses = {**statuses, **moved}
        updated = {p: replace(held_statuses[p], held_deletion=held) for p, held in holds.items() if p in statuses}
        if records := [PartitionRecord(name, status) for status in {**moved, **updated}.values()]:
            lease.put(*records)
        if not updated:
            return
        if text := format_held_deletions({p: s for p, s in updated.items() if s.state in COPIED_STATES}):
            hold, mirror = format_duration_ms(self.link.config.deletion_hold_ms(name)), self.link.mirror
            self.report_line(
                f"cluster {mirror.source} has deleted records that {mirror.destination} holds for {hold}"
                f" (`hold_deletions`): {text}"
            )

    def count_states(self, lease: HeldLease) -> None:
        state, name = lease.state, self.link.mirror.name
        statuses, proof = state.partitions.get(name, {}), state.verifications.get(name)
        groups = state.find_group_sync(name)
        if groups is not None:
            groups = replace(groups, synced_ms=to_broker_clock_ms(groups.synced_ms, lease.clock_ahead_ms))
        known_since_ms = list_newest_times(name, groups, proof, iter(state.runs.values()), statuses)
        mirror = state.mirrors[name]
        self.counters.set_recorded(statuses.values(), mirror.throttle, dict(known_since_ms), mirror.paused_topics)

    def count_early_deletions(self, lease: HeldLease, log_starts: Mapping[Partition, Offset]) -> None:
        statuses = lease.state.partitions.get(self.link.mirror.name, {})
        self.counters.set_early_deletions(find_early_deletions(statuses.values(), log_starts))

    def apply_plan(self, plan: CopyPlan, *, newest_epoch: int) -> None:
        self.clear_failures(plan.partitions, newest_epoch=newest_epoch)
        for partition, reason in plan.failed.items():
            self.report_failure(partition, reason)
        for text in plan.undecided_topics:
            if text not in self._undecided:
                self.report_line(text)
        self._undecided = plan.undecided_topics

    def clear_failures(self, partitions: Iterable[Partition], *, newest_epoch: int) -> None:
        for partition in self.summary.failed.keys() & set(partitions):
            del self.summary.failed[partition]
            self._recovered_after[partition] = newest_epoch

    def report_failure(self, partition: Partition, reason: str) -> None:
        if self._reported.get(partition) != reason:
            self._reported[partition] = reason
            _log.info("FAILED: %s", reason, partition=partition)
            self.report_line(f"FAILED {partition}: {reason}")
        self.summary.failed[partition] = reason


def format_wait_reasons(reasons: Iterable[str]) -> tuple[str, ...]:
    listed = sorted(
        {text if len(text) <= MAX_WAIT_CHARS else f"{text[:MAX_WAIT_CHARS]}..." for text in reasons if text}
    )
    more = [f"and {len(listed) - MAX_LISTED_WAITS} more"] if len(listed) > MAX_LISTED_WAITS else []
    return (*listed[:MAX_LISTED_WAITS], *more)


def raise_if_failed(summary: ReplicationSummary) -> None:
    """Raises PartitionFailed, or Indeterminate for topics that may not exist any more."""
    if summary.failed:
        listed = format_items(f"{partition}: {reason}" for partition, reason in sorted(summary.failed.items()))
        raise PartitionFailed(
            f"{len(summary.failed)} partitions FAILED; `mirrorbook mirror recover` shows what can be done about each:"
            f"{listed}"
        )
    if summary.undecided:
        raise Indeterminate("; ".join(summary.undecided))


class EpochLength:
    """A comparison that its task does not finish starts anew, so a long one gets a longer epoch."""

    def __init__(self, usual_s: float, report_line: Callable[[str], None]) -> None:
        self._usual_s, self._report_line = usual_s, report_line
        self.seconds = usual_s
        self.comparison_grace_s = compute_comparison_s(usual_s)

    def update(self, epoch: CopyEpoch, reports: Iterable[TaskReport]) -> None:
        report_list = tuple(reports)
        interrupted, comparisons_unknown = (
            sum(report.interrupted_comparisons for report in report_list),
            any(report.comparisons_unknown for report in report_list),
        )
        previous_s, lasted_s = self.seconds, (epoch.stop_ms - epoch.start_ms) / 1000
        self.seconds = compute_epoch_s(
            self._usual_s, previous_s, lasted_s, was_cut_short=interrupted > 0, is_unknown=comparisons_unknown
        )
        if previous_s == self._usual_s < self.seconds:
            self._report_line(
                f"comparing the logs of {format_count(interrupted, 'partition')} takes longer than an epoch of"
                f" {lasted_s:g} s: until it is done epochs last longer, {MAX_EPOCH_S:g} s at most. New topics,"
                " pause, throttle and recover take effect when the next epoch begins"
            )
        elif previous_s > self._usual_s == self.seconds:
            self._report_line(f"logs are compared: epochs last {self.seconds:g} s again")

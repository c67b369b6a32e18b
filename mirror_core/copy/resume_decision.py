"""Decides whether a partition resumes, waits or fails, from both logs.

No I/O. A decision only reads the replicator, which is LOST and does not change meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from mirror_core.copy.messages import (
    format_foreign,
    format_overfilled,
    format_retimed,
    format_too_wide,
    format_unrecorded_trim,
)
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.decide.gaps_and_resume import (
    MAX_GAP_OFFSETS,
    NO_KNOWN_OFFSET,
    NO_MARKER,
    BothLogBounds,
    ForeignWrite,
    ResumePoint,
    SourceLostRecords,
    decide_resume_point,
    to_own_producer_state,
)
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.wire.batch import SEQUENCE_MASK
from mirror_core.wire.records import Record


class ComparisonUndecided(MirrorError):
    """The source does not show everything yet (open transaction, lagging high watermark). Retriable."""


class ResumeDecision(NamedTuple):
    bounds: BothLogBounds
    resume: ResumePoint
    end_unverified: bool
    """The log's end is checked once there is something to copy."""
    requested_at: float | None = None


class FailDecision(NamedTuple):
    reason: str
    offset: int
    kind: FailureKind


class WaitDecision(NamedTuple):
    reason: str


CopyDecision = ResumeDecision | FailDecision | WaitDecision | None
"""None leaves it as it is."""


class LogInspector(Protocol):
    def find_first_foreign(self, partition: Partition, filled: int, bounds: BothLogBounds) -> int | None:
        """On the destination: see `log_inspection`."""

    def next_sequence_after_hole(self, partition: Partition, bounds: BothLogBounds) -> int | None:
        """Destination: the sequence after its last batch, if only our data follows a hole left by compaction."""

    def find_foreign_after_own(
        self, partition: Partition, bounds: BothLogBounds, search_from: int | None
    ) -> int | None:
        """On the destination: see `log_inspection`."""

    def read_last_record(self, partition: Partition, start: int, end: int) -> Record | None: ...

    def read_record(self, partition: Partition, offset: int) -> Record | None: ...

    def find_first_divergence(
        self, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
    ) -> Offset | None:
        """See `log_inspection`. Raises ComparisonUndecided."""

    def has_broker_time(self, partition: Partition, offset: int) -> bool: ...

    def find_first_retimed(self, partition: Partition, start: int, bounds: BothLogBounds) -> int | None:
        """On the destination: see `log_inspection`. Or the first of a row before `start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeDecider:
    source: ClusterName
    destination: ClusterName
    inspector: LogInspector

    def decide(self, replicator: PartitionReplicator, bounds: BothLogBounds, compare_from: int | None) -> CopyDecision:
        """Changes nothing. `compare_from`: see `find_comparison_start`."""
        if (failure := self._check_retimed(replicator, bounds)) is not None:
            return failure
        holds_deletions = replicator.assigned.holds_deletions
        position_decision = decide_resume_point(bounds, holds_deletions=holds_deletions)
        if isinstance(position_decision, ForeignWrite):
            bounds = self._restore_forgotten_markers(replicator.partition, bounds)
            position_decision = decide_resume_point(bounds, holds_deletions=holds_deletions)
        problem: FailDecision | WaitDecision | None = None
        match position_decision:
            case SourceLostRecords(position, reason, check_tail):
                if check_tail:
                    problem = self._check_foreign_after_own(replicator, bounds, None) or self._check_extra_markers(
                        replicator, bounds, None
                    )
                return problem or self._check_divergence(replicator, position, compare_from, reason)
            case ForeignWrite(expected, filled):
                first = self.inspector.find_first_foreign(replicator.partition, filled, bounds)
                if first is None:
                    return self._fail_overfilled(replicator, expected, bounds.log_end)
                return self._fail_foreign(replicator, first)
            case ResumePoint(offset=offset, gap_end=gap_end) if (
                gap_end - offset > MAX_GAP_OFFSETS and not replicator.uses_hidden_records
            ):
                text = format_too_wide(self.destination, replicator.partition, offset, gap_end)
                return FailDecision(text, offset, FailureKind.GAP_LIMIT)
            case ResumePoint() as resume:
                end_unverified = resume.must_check_tail and _can_postpone_check(replicator, bounds, resume)
                if resume.must_check_tail and not end_unverified:
                    problem = self._check_tail(replicator, bounds)
                agreed_end = max(
                    NO_KNOWN_OFFSET if compare_from is None else compare_from, bounds.log_start, bounds.source_start
                )
                if not problem and self._has_other_tail(replicator, bounds):
                    problem = self._check_divergence(replicator, resume.offset, NO_KNOWN_OFFSET)
                elif not problem and compare_from is not None and resume.offset > agreed_end:
                    problem = self._check_divergence(replicator, resume.offset, compare_from)
                return problem or ResumeDecision(bounds, resume, end_unverified)

    def _check_retimed(self, replicator: PartitionReplicator, bounds: BothLogBounds) -> FailDecision | None:
        """Fails if the broker replaced the times of an unacknowledged batch. Only the response would have shown it."""
        start = _find_unanswered_start(replicator, bounds)
        first_offset = None if start is None else self.inspector.find_first_retimed(replicator.partition, start, bounds)
        return None if first_offset is None else self._fail_retimed(replicator, first_offset)

    def _restore_forgotten_markers(self, partition: Partition, bounds: BothLogBounds) -> BothLogBounds:
        """A new or recovered replica knows only what its log shows; compaction may have removed markers, though none in
        the last segment. So none is after the data, and no gap is half filled. The source's record at that offset
        confirms that the data is ours.
        """
        if bounds.producer is None or bounds.log_end > bounds.source_end:
            return bounds
        sequence = self.inspector.next_sequence_after_hole(partition, bounds)
        if sequence is None or not self._compare_tail(partition, bounds)[1]:
            return bounds
        if sequence & SEQUENCE_MASK != bounds.producer.next_sequence:
            return bounds
        return replace(bounds, producer=to_own_producer_state(bounds.log_end, sequence & SEQUENCE_MASK))

    def _check_divergence(
        self, replicator: PartitionReplicator, position: int, compare_from: int | None, reason: str = ""
    ) -> FailDecision | WaitDecision | None:
        partition = replicator.partition
        try:
            difference = self.inspector.find_first_divergence(
                partition, position, _to_known_offset(compare_from), _to_known_offset(replicator.doubted_from)
            )
        except ComparisonUndecided as error:
            return WaitDecision(str(error))
        if difference is None:
            return None
        if self.inspector.has_broker_time(partition, difference):
            return self._fail_retimed(replicator, difference)
        if (
            not reason
            and compare_from == replicator.doubted_from
            and replicator.agreed_epoch == replicator.source_epoch
        ):
            return self._fail_different(partition, difference)
        text = reason or "the source lost records that were copied (unclean leader election)"
        return FailDecision(
            f"cluster {self.source}, {partition}: {text}; from offset {difference} on cluster {self.destination} holds "
            f"{position - difference} offsets that the source does not have",
            difference,
            FailureKind.DIVERGED,
        )

    def _has_other_tail(self, replicator: PartitionReplicator, bounds: BothLogBounds) -> bool:
        """Leader epochs show nothing of a source that is restored from an older copy, and leads under them again."""
        has_both = max(bounds.log_start, bounds.source_start) < bounds.log_end
        must_compare = replicator.source.is_interrupted and has_both and not bounds.has_equal_tails
        return must_compare and not self._compare_tail(replicator.partition, bounds)[1]

    def _check_tail(self, replicator: PartitionReplicator, bounds: BothLogBounds) -> FailDecision | None:
        """Fails if the source's last record below the position is missing here, or a foreign one follows it in a gap.

        Equal tails also exclude too many markers: the source has nothing after that record.
        """
        partition = replicator.partition
        source_record, is_on_destination = self._compare_tail(partition, bounds)
        if source_record is None or is_on_destination:
            return self._check_foreign_after_own(
                replicator, bounds, None if source_record is None else source_record.offset
            )
        problem = self._check_foreign_after_own(replicator, bounds, None) or self._check_extra_markers(
            replicator, bounds, source_record.offset
        )
        return problem or self._fail_different(partition, source_record.offset)

    def _fail_different(self, partition: Partition, offset: int) -> FailDecision:
        text = (
            f"cluster {self.destination}, {partition}: offset {offset} does not hold what cluster {self.source} has "
            "there; somebody else wrote to the mirror topic, or the clusters diverged: compare both (mirrorbook parity)"
        )
        return FailDecision(text, offset, FailureKind.DIVERGED)

    def _compare_tail(self, partition: Partition, bounds: BothLogBounds) -> tuple[Record | None, bool]:
        start = max(bounds.log_start, bounds.source_start)
        source_record = self.inspector.read_last_record(partition, start, bounds.log_end)
        return source_record, source_record is None or self.inspector.read_record(
            partition, source_record.offset
        ) == source_record

    def _check_foreign_after_own(
        self, replicator: PartitionReplicator, bounds: BothLogBounds, search_from: int | None
    ) -> FailDecision | None:
        first_offset = self.inspector.find_foreign_after_own(replicator.partition, bounds, search_from)
        return None if first_offset is None else self._fail_foreign(replicator, first_offset)

    def _check_extra_markers(
        self, replicator: PartitionReplicator, bounds: BothLogBounds, missing_offset: int | None
    ) -> FailDecision | None:
        """Fails if our own markers made the log too long, where counting cannot show it.

        A leader that knows only markers of ours may have forgotten the data before them; but a source with the same
        leader since both sides agreed has lost nothing (KIP-101). `missing_offset`: one whose record only the source
        has; None: the source ends earlier.
        """
        if (
            bounds.producer is None
            or bounds.producer.next_sequence
            or replicator.agreed_epoch != replicator.source_epoch
        ):
            return None
        return self._fail_overfilled(
            replicator, bounds.source_end if missing_offset is None else missing_offset, bounds.log_end
        )

    def _fail_foreign(self, replicator: PartitionReplicator, first_offset: int) -> FailDecision:
        return FailDecision(
            format_foreign(self.destination, replicator.partition, first_offset), first_offset, FailureKind.FOREIGN
        )

    def _fail_retimed(self, replicator: PartitionReplicator, first_offset: int) -> FailDecision:
        return FailDecision(
            format_retimed(self.destination, replicator.partition, first_offset), first_offset, FailureKind.ALTERED
        )

    def _fail_overfilled(self, replicator: PartitionReplicator, expected: int, log_end: int) -> FailDecision:
        text = format_overfilled(self.destination, replicator.partition, expected, log_end)
        return FailDecision(text, expected, FailureKind.GAP_LIMIT)


def _to_known_offset(offset: int | None) -> int | None:
    return None if offset == NO_KNOWN_OFFSET else offset


def apply_decision(replicator: PartitionReplicator, decision: CopyDecision, source: ClusterName) -> None:
    match decision:
        case ResumeDecision():
            _apply_resume(replicator, decision, source)
        case FailDecision():
            replicator.fail(*decision)
        case WaitDecision(reason):
            replicator.mark_lost(reason)


def _apply_resume(replicator: PartitionReplicator, decision: ResumeDecision, source: ClusterName) -> None:
    bounds, resume = decision.bounds, decision.resume
    acknowledged, source_start = replicator.progress.acknowledged, bounds.source_start
    if not replicator.trims.can_pass(resume.deleted_from, source_start, acknowledged):
        replicator.postpone(format_unrecorded_trim(source, replicator.partition, source_start))
        return
    replicator.mark_agreed()
    newest_epoch = NO_MARKER if bounds.producer is None else bounds.producer.coordinator_epoch
    if bounds.producer is None or bounds.log_end < acknowledged:  # the log lost its end, with markers
        replicator.gap_claim.forget(newest_epoch)
    else:
        replicator.gap_claim.note_epoch(newest_epoch)
    replicator.resume_at(
        resume,
        is_producer_unknown=bounds.producer is None,
        end_unverified=decision.end_unverified,
        requested_at=decision.requested_at,
    )


def _can_postpone_check(replicator: PartitionReplicator, bounds: BothLogBounds, resume: ResumePoint) -> bool:
    """Until there is something to copy: else every epoch would check many idle partitions.

    Not for a partition that ends here, nor where a leader knows markers and no data before them: it may have forgotten
    data, or a marker may stand in for a record.
    """
    is_idle = resume.offset == bounds.source_end == max(resume.gap_end, resume.seed_end)
    has_markers = bounds.producer is not None and bounds.producer.coordinator_epoch != NO_MARKER
    may_wait = replicator.assigned.stop_offset is None and not has_markers
    return is_idle and (may_wait or bounds.verified_end == resume.offset)


def _find_unanswered_start(replicator: PartitionReplicator, bounds: BothLogBounds) -> int | None:
    """First offset that may hold an unacknowledged batch; None: there is none.

    Others' batches are checked before anything is appended.
    """
    if bounds.log_end == bounds.log_start:
        return None
    if replicator.aligned is not None:
        acknowledged = replicator.progress.acknowledged
        return acknowledged if acknowledged < bounds.log_end else None
    return None if replicator.assigned.all_answered or bounds.ends_as_sent else bounds.log_end - 1


def find_comparison_start(replicator: PartitionReplicator, bounds: BothLogBounds, agreed_end: int | None) -> int | None:
    """Offset from which both sides must be compared; None: no doubt.

    `agreed_end`: where the last agreed leader epoch ended on the source, or NO_KNOWN_OFFSET; None: it has not ended. A
    source that ends before what this task saw has lost records, under whatever epoch. What no response and no report
    has acknowledged may be an old leader's, or somebody's who imitates this mirror's producer.
    """
    known_end = replicator.source.end
    if known_end is not None and bounds.source_end < known_end:
        replicator.mark_doubtful(NO_KNOWN_OFFSET)
    known_until = replicator.assigned.compare_from if replicator.aligned is None else replicator.progress.acknowledged
    if known_until is not None and bounds.log_end > known_until:
        replicator.mark_doubtful(known_until)
    return min((offset for offset in (agreed_end, replicator.doubted_from) if offset is not None), default=None)

"""Decides whether a partition resumes, waits or fails, from both logs. No I/O: a `LogInspector` reads.

`decide.position` decides from the leader's producer state; where that is not enough the logs are compared, in a thread.
A decision only reads the replicator, which is LOST and does not change meanwhile; the loop applies it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import foreign, overfilled, retimed, unrecorded
from mirror_core.decide.gaps import NO_MARKER
from mirror_core.decide.position import ANYWHERE, Foreign, Resume, Seen, Stop, ours_behind_data, where_to_resume
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.wire.batch import SEQUENCE_MASK
from mirror_core.wire.records import Record


class Undecided(MirrorError):
    """The source does not show everything yet (open transaction, lagging high watermark). Retriable."""


class Resumes(NamedTuple):
    seen: Seen
    resume: Resume
    unseen: bool
    """The log's end is not checked before there is something to copy."""
    asked: float | None = None


class Fails(NamedTuple):
    reason: str
    offset: int
    kind: FailureKind


class Waits(NamedTuple):
    why: str


Verdict = Resumes | Fails | Waits | None
"""None: it stays as it is."""


class Logs(Protocol):
    def first_foreign(self, partition: Partition, filled: int, seen: Seen) -> int | None:
        """Destination: the first batch near the end that this mirror did not write at its offset."""

    def next_sequence_behind_a_hole(self, partition: Partition, seen: Seen) -> int | None:
        """Destination: the sequence after its last batch, if only our data follows a hole left by compaction."""

    def stranger_behind(self, partition: Partition, seen: Seen, since: int | None) -> int | None:
        """Destination: the first batch from `since` on by another producer after one of ours."""

    def last_record(self, partition: Partition, start: int, end: int) -> Record | None: ...

    def record_at(self, partition: Partition, offset: int) -> Record | None: ...

    def first_divergence(self, partition: Partition, position: int, since: int | None) -> Offset | None:
        """Both: the first difference below `position`. Raises ComparisonUndecided."""

    def timed_by_broker(self, partition: Partition, offset: int) -> bool: ...

    def first_retimed(self, partition: Partition, start: int, seen: Seen) -> int | None:
        """Destination: our first batch from `start` on with the broker's time, or the first of a row before
        it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    source: ClusterName
    destination: ClusterName
    logs: Logs

    def verdict(self, replicator: PartitionReplicator, seen: Seen, since: int | None) -> Verdict:
        """Changes nothing. `since`: see `find_comparison_start`."""
        if (altered := self._retimed(replicator, seen)) is not None:
            return altered
        found = where_to_resume(seen)
        if isinstance(found, Foreign):
            seen = self._remembered(replicator.partition, seen)
            found = where_to_resume(seen)
        wrong: Fails | Waits | None = None
        match found:
            case Stop(position, reason, check_tail):
                if check_tail:
                    wrong = self._strangers(replicator, seen, None) or self._markers_too_many(replicator, seen, None)
                return wrong or self._differs(replicator, position, since, reason)
            case Foreign(expected, filled):
                first = self.logs.first_foreign(replicator.partition, filled, seen)
                if first is None:
                    return self._overfilled(replicator, expected, seen.log_end)
                return self._foreign(replicator, first)
            case Resume() as resume:
                unseen = resume.check_tail and _may_wait(replicator, seen, resume)
                if resume.check_tail and not unseen:
                    wrong = self._tail_differs(replicator, seen)
                known = max(ANYWHERE if since is None else since, seen.log_start, seen.source_start)
                if not wrong and since is not None and resume.offset > known:
                    wrong = self._differs(replicator, resume.offset, since)
                return wrong or Resumes(seen, resume, unseen)

    def _retimed(self, replicator: PartitionReplicator, seen: Seen) -> Fails | None:
        """Whether the broker replaced the times of an unacknowledged batch.

        Only the response would have shown it: offsets, sequences and leader epochs are right, and without later batches
        there is no other response.
        """
        start = _unanswered_since(replicator, seen)
        first = None if start is None else self.logs.first_retimed(replicator.partition, start, seen)
        return None if first is None else self._altered(replicator, first)

    def _remembered(self, partition: Partition, seen: Seen) -> Seen:
        """Restores markers that the leader has forgotten.

        A new or recovered replica knows only what its log shows, and compaction may have removed markers. Not the
        newest ones: it leaves the last segment alone. So there is no marker after the data, and no half-filled gap. The
        source's record at the same offset confirms that the data is ours.
        """
        if seen.ours is None or seen.log_end > seen.source_end:
            return seen
        sequence = self.logs.next_sequence_behind_a_hole(partition, seen)
        if sequence is None or not self._tail(partition, seen)[1]:
            return seen
        if sequence & SEQUENCE_MASK != seen.ours.next_sequence:
            return seen
        return replace(seen, ours=ours_behind_data(seen.log_end, sequence & SEQUENCE_MASK))

    def _differs(
        self, replicator: PartitionReplicator, position: int, since: int | None, reason: str = ""
    ) -> Fails | Waits | None:
        partition = replicator.partition
        try:
            found = self.logs.first_divergence(partition, position, None if since == ANYWHERE else since)
        except Undecided as error:
            return Waits(str(error))
        if found is None:
            return None
        if self.logs.timed_by_broker(partition, found):
            return self._altered(replicator, found)
        words = reason or "the source lost records that were copied (unclean leader election)"
        return Fails(
            f"cluster {self.source}, {partition}: {words}; from offset {found} on cluster {self.destination} holds "
            f"{position - found} offsets that the source does not have",
            found,
            FailureKind.DIVERGED,
        )

    def _tail_differs(self, replicator: PartitionReplicator, seen: Seen) -> Fails | None:
        """Whether the source's last record below the position is missing here, or a foreign one follows it in
        a gap.

        Equal tails also show that there are not too many markers: the source has nothing after that record either.
        """
        partition = replicator.partition
        theirs, here_too = self._tail(partition, seen)
        if theirs is None or here_too:
            return self._strangers(replicator, seen, None if theirs is None else theirs.offset)
        wrong = self._strangers(replicator, seen, None) or self._markers_too_many(replicator, seen, theirs.offset)
        return wrong or Fails(
            f"cluster {self.destination}, {partition}: offset {theirs.offset} does not hold what cluster "
            f"{self.source} has there; somebody else wrote to the mirror topic, or the clusters diverged: "
            "compare both (mirrorbook parity)",
            theirs.offset,
            FailureKind.DIVERGED,
        )

    def _tail(self, partition: Partition, seen: Seen) -> tuple[Record | None, bool]:
        """The source's last record below the position, and whether the destination has it (True without a
        record)."""
        theirs = self.logs.last_record(partition, seen.source_start, seen.log_end)
        return theirs, theirs is None or self.logs.record_at(partition, theirs.offset) == theirs

    def _strangers(self, replicator: PartitionReplicator, seen: Seen, since: int | None) -> Fails | None:
        first = self.logs.stranger_behind(replicator.partition, seen, since)
        return None if first is None else self._foreign(replicator, first)

    def _markers_too_many(self, replicator: PartitionReplicator, seen: Seen, missing: int | None) -> Fails | None:
        """Whether our own markers made the log too long, where counting cannot show it.

        A leader that knows only markers of ours may have forgotten the data before them. But a source with the same
        leader since both sides agreed has lost nothing (KIP-101), and nobody else has written here. `missing`: an
        offset whose record only the source has; None: the source ends earlier.
        """
        if seen.ours is None or seen.ours.next_sequence or replicator.vouched_epoch != replicator.source_epoch:
            return None
        return self._overfilled(replicator, seen.source_end if missing is None else missing, seen.log_end)

    def _foreign(self, replicator: PartitionReplicator, first: int) -> Fails:
        return Fails(foreign(self.destination, replicator.partition, first), first, FailureKind.FOREIGN)

    def _altered(self, replicator: PartitionReplicator, first: int) -> Fails:
        return Fails(retimed(self.destination, replicator.partition, first), first, FailureKind.ALTERED)

    def _overfilled(self, replicator: PartitionReplicator, expected: int, log_end: int) -> Fails:
        words = overfilled(self.destination, replicator.partition, expected, log_end)
        return Fails(words, expected, FailureKind.GAP_LIMIT)


def take_in(replicator: PartitionReplicator, verdict: Verdict, source: ClusterName) -> None:
    match verdict:
        case Resumes():
            _resume(replicator, verdict, source)
        case Fails():
            replicator.fail(*verdict)
        case Waits(why):
            replicator.lose(why)


def _resume(replicator: PartitionReplicator, found: Resumes, source: ClusterName) -> None:
    seen, resume = found.seen, found.resume
    acknowledged, start = replicator.place.acknowledged, seen.source_start
    if not replicator.deletions.may_pass(resume.deleted_from, start, acknowledged):
        replicator.wait(unrecorded(source, replicator.partition, start))
        return
    replicator.agreed()
    newest = NO_MARKER if seen.ours is None else seen.ours.coordinator_epoch
    if seen.ours is None or seen.log_end < acknowledged:  # the log lost its end, with markers
        replicator.gaps.forget(newest)
    else:
        replicator.gaps.seen(newest)
    replicator.resume_at(resume, unremembered=seen.ours is None, end_unseen=found.unseen, asked=found.asked)


def _may_wait(replicator: PartitionReplicator, seen: Seen, resume: Resume) -> bool:
    """Whether the check of the log's end may wait until there is something to copy.

    Otherwise, after leaders lost producer state, many idle partitions would be checked in every epoch. Not for a
    partition that ends here: both sides must have been compared. Not where a leader knows markers and no data before
    them: it may have forgotten data, or a marker may stand in for a record.
    """
    idle = resume.offset == seen.source_end == max(resume.gap_end, resume.seed_end)
    marked = seen.ours is not None and seen.ours.coordinator_epoch != NO_MARKER
    waits = replicator.assigned.until is None and not marked
    return idle and (waits or seen.proved_end == resume.offset)


def _unanswered_since(replicator: PartitionReplicator, seen: Seen) -> int | None:
    """First offset that may hold an unacknowledged batch; None: there is none.

    Batches that others left are at the end of the log, and are checked before anything is appended.
    """
    if seen.log_end == seen.log_start:
        return None
    if replicator.aligned is not None:
        known = replicator.place.acknowledged
        return known if known < seen.log_end else None
    return None if replicator.assigned.answered or seen.ends_as_sent else seen.log_end - 1


def unsure_since(replicator: PartitionReplicator, seen: Seen, agreed: int | None) -> int | None:
    """Offset from which both sides must be compared; None: no doubt.

    `agreed`: where the last agreed leader epoch ended on the source, or ANYWHERE; None: it has not ended. A source that
    ends before what this task saw has lost records, under whatever epoch. And after a change of leader, what others
    appended here may come from the old leader.
    """
    place, told = replicator.place, replicator.source.end
    if told is not None and seen.source_end < told:
        replicator.doubt(ANYWHERE)
    led_anew = replicator.assigned.source_epoch != replicator.source_epoch
    if led_anew and replicator.aligned is not None and seen.log_end > place.acknowledged:
        replicator.doubt(place.acknowledged)
    return min((offset for offset in (agreed, replicator.doubted) if offset is not None), default=None)

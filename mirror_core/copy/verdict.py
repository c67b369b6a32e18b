"""What both logs say of a partition's place: go on from there, wait, or it cannot go on. No I/O: `Logs` looks.

`decide.position` decides from what a leader remembers; where that is not enough, the logs themselves are looked at.
That may take long, and is done beside the task's loop: a verdict only reads the replicator, whose place is lost, and to
which nothing happens meanwhile. The loop takes it in.
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
    """The source does not show all of it yet: a transaction is open, or its high watermark lags. Ask again."""


class Resumes(NamedTuple):
    """It goes on."""

    seen: Seen
    resume: Resume
    unseen: bool
    """The end of its log is not looked at before there is something to copy."""
    asked: float | None = None
    """Monotonic time before the leader was asked what it remembers; None: just now."""


class Fails(NamedTuple):
    """It cannot."""

    reason: str
    offset: int
    kind: FailureKind


class Waits(NamedTuple):
    """That cannot be told yet."""

    why: str


Verdict = Resumes | Fails | Waits | None
"""None: it stays as it is."""


class Logs(Protocol):
    """Both logs, where one has to look into them."""

    def first_foreign(self, partition: Partition, filled: int, seen: Seen) -> int | None:
        """Destination: the first batch in its newest part that this mirror did not write where it stands."""

    def next_sequence_behind_a_hole(self, partition: Partition, seen: Seen) -> int | None:
        """Destination: the sequence behind its last batch, if there is but our data up to a hole that the cleaner
        left."""

    def stranger_behind(self, partition: Partition, seen: Seen, since: int | None) -> int | None:
        """Destination: the first batch from `since` on that is another producer's and lies behind one of ours."""

    def last_record(self, partition: Partition, start: int, end: int) -> Record | None:
        """Source: the last committed record of [start, end)."""

    def record_at(self, partition: Partition, offset: int) -> Record | None:
        """Destination: the committed record there."""

    def first_divergence(self, partition: Partition, position: int, since: int | None) -> Offset | None:
        """Both: the first offset below `position` where they differ. Undecided when it cannot be told yet."""

    def timed_by_broker(self, partition: Partition, offset: int) -> bool:
        """Destination: whether the record there has the broker's time instead of its own."""

    def first_retimed(self, partition: Partition, start: int, seen: Seen) -> int | None:
        """Destination: the first batch of ours from `start` on that has the broker's time; or of those in a row before
        it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Between two clusters."""

    source: ClusterName
    destination: ClusterName
    logs: Logs

    def verdict(self, replicator: PartitionReplicator, seen: Seen, since: int | None) -> Verdict:
        """Whether it goes on. Changes nothing. `since`: as `unsure_since` says."""
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
        """Whether the broker has given its own time to what was sent and not answered.

        The answer would have told. Without it nothing else does: offsets, sequences and leader epochs are as they
        should be, and if nothing comes behind, there will be no other answer.
        """
        start = _unanswered_since(replicator, seen)
        first = None if start is None else self.logs.first_retimed(replicator.partition, start, seen)
        return None if first is None else self._altered(replicator, first)

    def _remembered(self, partition: Partition, seen: Seen) -> Seen:
        """The same with the markers that a leader has forgotten.

        A new replica, or one that has crashed, knows of us what its log tells, and of a log that was cleaned the
        markers may be gone. Not the newest ones: the cleaner leaves the last segment alone. So behind data there is
        none, and no gap is half filled. That it is our data, at its own offset, the source's record there tells, too.
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
        """Whether the source holds no longer what was copied, when it can be told."""
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
        """Whether the last record that the source has below the position is not on the destination, or somebody else's
        is behind it, where the source has a gap.

        Equal tails also say that there is no marker too many: behind that record the source has nothing either.
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
        """The source's last record below the position, and whether it is on the destination, too; so is none."""
        theirs = self.logs.last_record(partition, seen.source_start, seen.log_end)
        return theirs, theirs is None or self.logs.record_at(partition, theirs.offset) == theirs

    def _strangers(self, replicator: PartitionReplicator, seen: Seen, since: int | None) -> Fails | None:
        """Whether somebody else wrote behind what we wrote, from offset `since` on."""
        first = self.logs.stranger_behind(replicator.partition, seen, since)
        return None if first is None else self._foreign(replicator, first)

    def _markers_too_many(self, replicator: PartitionReplicator, seen: Seen, missing: int | None) -> Fails | None:
        """Whether our own markers have made the log too long, where the count cannot tell.

        A leader that knows only markers of ours may have forgotten the data before them. But a source that has not
        changed its leader since both sides agreed has lost nothing (KIP-101), and nobody else has written here.
        `missing`: an offset whose record the source has and the destination does not; None: it ends before.
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
    """In the task's loop."""
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
    if seen.ours is None or seen.log_end < acknowledged:  # the log has lost its end, and markers with it
        replicator.gaps.forget(newest)
    else:
        replicator.gaps.seen(newest)
    replicator.resume_at(resume, unremembered=seen.ours is None, end_unseen=found.unseen, asked=found.asked)


def _may_wait(replicator: PartitionReplicator, seen: Seen, resume: Resume) -> bool:
    """Whether the log's end need not be looked at before there is something to copy. Where leaders have forgotten who
    wrote, idle partitions may be many, and one epoch after the other would look at all of them. Who is to end here
    copies nothing more: then both sides must have been compared up to here. So must where a leader knows of markers,
    and of no data before them: it may have forgotten that, or there is a marker where a record should be."""
    idle = resume.offset == seen.source_end == max(resume.gap_end, resume.seed_end)
    marked = seen.ours is not None and seen.ours.coordinator_epoch != NO_MARKER
    waits = replicator.assigned.until is None and not marked
    return idle and (waits or seen.proved_end == resume.offset)


def _unanswered_since(replicator: PartitionReplicator, seen: Seen) -> int | None:
    """The offset from which on the destination may hold what was sent, and whose answer nobody has heard; None: there
    is nothing of that sort. What others have left is at the end of the log: who goes on has looked at it first.
    """
    if seen.log_end == seen.log_start:
        return None
    if replicator.aligned is not None:
        known = replicator.place.acknowledged
        return known if known < seen.log_end else None
    return None if replicator.assigned.answered or seen.ends_as_sent else seen.log_end - 1


def unsure_since(replicator: PartitionReplicator, seen: Seen, agreed: int | None) -> int | None:
    """The offset from which on the copy has to be compared with the source; None: there is nothing to doubt. `agreed`:
    where the leader epoch under which both agreed last has ended on the source, or ANYWHERE; None: it has not ended.

    A source that ends before what this task has seen of it has lost something, under whatever leader epoch. And if it
    has had another leader since this task was given the partition, what came to the destination by other hands than
    ours may have been read from the old one.
    """
    place, told = replicator.place, replicator.source.end
    if told is not None and seen.source_end < told:
        replicator.doubt(ANYWHERE)
    led_anew = replicator.assigned.source_epoch != replicator.source_epoch
    if led_anew and replicator.aligned is not None and seen.log_end > place.acknowledged:
        replicator.doubt(place.acknowledged)
    return min((offset for offset in (agreed, replicator.doubted) if offset is not None), default=None)

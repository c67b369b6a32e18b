"""One lane a partition: where its copying stands, and how it finds its place on the destination."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import xxhash

from mirror_core.decide.gaps import NO_MARKER
from mirror_core.decide.position import Foreign, Ours, Resume, Seen, Stop, where_to_resume
from mirror_core.engine.divergence import Histories, Undecided
from mirror_core.kafka import tail
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.epochs import epoch_ends
from mirror_core.kafka.offsets import Point, ProducerView, describe_producers, list_offsets
from mirror_core.model.copying import Aligned, Assigned, Failure
from mirror_core.model.errors import MissingPermission, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import SEQUENCE_MASK

_QUEUE_BYTES: Final = 1 << 20
"""Of a lane's batches that wait for a gap; then no more are fetched."""
_SETTLE_TRIES: Final = 50
_SETTLE_WAIT_S: Final = 0.02


class LaneState(Enum):
    LOST = "lost"
    """Position not known: to be read from the destination when nothing is in flight any more."""
    READY = "ready"
    DONE = "done"
    """Copied up to the end that was asked for."""
    FAILED = "failed"


class Gap(NamedTuple):
    """Offsets up to `end` (the next one after it) that hold no record on the source.

    It begins where what is before it ends.
    """

    end: int


class Sent(NamedTuple):
    """What is remembered of a batch in flight."""

    lane: Lane
    base: int
    records: int
    size: int
    payload: bytes
    """XXH3-128 of the bytes after the header; empty for a filler, which stands for no record."""


@dataclass(slots=True)
class Claim:
    """The right to fill a partition's gaps. Whoever wrote the newest marker has it, as long as all of theirs are
    answered; anybody else waits until the log has been quiet for a while, and shuts the last owner out."""

    newest: int = NO_MARKER
    """Highest coordinator epoch known to have been sent to this partition, by anybody."""
    mine: int = NO_MARKER
    """The newest marker of ours that is known to be in the log, with nothing of ours unanswered."""
    quiet_at: int = -1
    """The log end that is watched."""
    quiet_until: float = 0.0
    """Monotonic time until which it must not have moved."""

    @property
    def owned(self) -> bool:
        return self.mine != NO_MARKER and self.mine == self.newest

    def seen(self, coordinator_epoch: int) -> None:
        """Take in what the leader remembers."""
        self.newest = max(self.newest, coordinator_epoch)

    def unanswered(self) -> None:
        """Markers of ours are on their way."""
        self.mine = NO_MARKER

    def forget(self) -> None:
        """The leader has forgotten all markers, and would take any."""
        self.newest = self.mine = NO_MARKER


@dataclass(slots=True, eq=False)
class Lane:
    """A partition being copied. Offsets are next offsets: to fetch (`position`), and after the last acknowledged."""

    assigned: Assigned
    state: LaneState = LaneState.LOST
    position: int = 0
    acknowledged: int = 0
    sequence: int = 0
    """Of the next batch to be put into line."""
    acknowledged_sequence: int = 0
    """After the last acknowledged batch."""
    forgotten: bool = False
    """The leader remembers nothing of us: it takes any sequence from a batch, and after a marker only 0."""
    queue: deque[Gap | tuple[Sent, memoryview]] = field(default_factory=deque)
    """What waits for a gap before it to be filled; begins with a gap, and bytes in it are its own."""
    queued_bytes: int = 0
    claim: Claim = field(default_factory=Claim)
    seed_end: int = 0
    """Below it nothing is fetched: the log is seeded up to there, since the source starts there."""
    seeded: int = 0
    """Next offset to be seeded."""
    asked: int = -1
    """The position of the newest Fetch; its answer is of use only while the lane still stands there."""
    suspect: bool = False
    """The source gave nothing though there should be something: it is asked for this partition alone."""
    empty: int = 0
    """Answers in a row that said so."""
    in_flight: int = 0
    ending: Failure | None = None
    """Why the lane will fail once what was sent before is acknowledged."""
    source_broker: int = -1
    destination_broker: int = -1
    source_epoch: int = -1
    aligned: Aligned | None = None
    """Under which leader of the source the copy was last seen to agree with it."""
    first: int | None = None
    gaps: int = 0
    """Offsets from `first` on that were filled or seeded."""
    source_end: int | None = None
    readable_end: int | None = None
    """The source's last stable offset as last seen since this place was taken up."""
    batches: int = 0
    sent_bytes: int = 0
    digest: xxhash.xxh3_128 | None = field(default_factory=xxhash.xxh3_128)
    failure: Failure | None = None

    @property
    def partition(self) -> Partition:
        return self.assigned.partition

    @property
    def records(self) -> int:
        """Copied since `first`."""
        return 0 if self.first is None else self.acknowledged - self.first - self.gaps

    @property
    def finished(self) -> bool:
        """Nothing more is to be put into line."""
        until = self.assigned.until
        if self.ending is not None or until is None or self.position < until:
            return self.ending is not None
        # How far the last gap really goes must be known before it is filled, also where that is further than `until`.
        return not self.queue or self.claim.owned or self.gap_known

    @property
    def fetchable(self) -> bool:
        """More may be asked of the source."""
        return (
            self.state is LaneState.READY
            and not self.finished
            and self.seed_end <= self.acknowledged
            and self.queued_bytes < _QUEUE_BYTES
        )

    @property
    def gap(self) -> Gap | None:
        """The gap that is to be filled now: all before it is acknowledged."""
        head = self.queue[0] if self.queue else None
        due = self.state is LaneState.READY and not self.in_flight and self.seed_end <= self.acknowledged
        return head if due and isinstance(head, Gap) else None

    @property
    def sendable(self) -> bool:
        """Whether the first thing in line is a batch that may be sent."""
        return bool(self.queue) and self.state is LaneState.READY and not isinstance(self.queue[0], Gap)

    @property
    def gap_known(self) -> bool:
        """Whether the first gap's end is its true end, further than which nobody can have begun to fill it."""
        return len(self.queue) > 1 or (self.readable_end is not None and self.position >= self.readable_end)

    def fail(self, reason: str, offset: int | None, kind: FailureKind = FailureKind.OTHER) -> None:
        """Stop at once."""
        self.state = LaneState.FAILED
        where = None if offset is None else Offset(offset)
        self.failure = Failure(partition=self.partition, reason=reason, offset=where, kind=kind)

    def end(self, reason: str, offset: int, kind: FailureKind = FailureKind.OTHER) -> None:
        """Fail at this offset, after all before it has been acknowledged."""
        self.ending = Failure(partition=self.partition, reason=reason, offset=Offset(offset), kind=kind)

    @property
    def vouched_epoch(self) -> int | None:
        """Leader epoch of the source under which the copy was last known to agree with it."""
        return self.aligned.source_epoch if self.aligned else self.assigned.source_epoch

    def settle_end(self) -> None:
        if self.ending is not None and self.state is LaneState.READY and self.acknowledged == self.position:
            self.state, self.failure = LaneState.FAILED, self.ending

    def skip_to(self, end: int) -> None:
        """Put [position, end) into line as a gap, one with the gap before it."""
        if self.forgotten:
            self.sequence = self.acknowledged_sequence = 0
            self.forgotten = False
        if self.queue and isinstance(self.queue[-1], Gap):
            self.queue.pop()
        self.queue.append(Gap(end))
        self.position = end

    def filled(self, offsets: int) -> None:
        """So many offsets of the first gap are filled."""
        self.acknowledged += offsets
        self.gaps += offsets
        gap = self.queue[0]
        if isinstance(gap, Gap) and self.acknowledged == gap.end:
            self.queue.popleft()
        self.finish_if_done()

    def resume_at(self, resume: Resume) -> None:
        """Take up copying where the destination's log ends.

        What was in flight and turns out to be appended was never acknowledged to us, so no digest can vouch for it.
        """
        offset = resume.offset
        if self.first is None:
            self.first = offset
        elif offset != self.acknowledged:
            records = (resume.sequence - self.acknowledged_sequence) & SEQUENCE_MASK
            seeding = self.seed_end > self.acknowledged
            if offset > self.acknowledged and (seeding or records <= offset - self.acknowledged):
                self.gaps += offset - self.acknowledged - (0 if seeding else records)
            self.first = min(self.first, offset)
            self.digest = None
        self.position = self.acknowledged = offset
        self.sequence = self.acknowledged_sequence = resume.sequence
        self.queue.clear()
        self.queued_bytes = 0
        self.suspect, self.empty = False, 0
        self.readable_end = None
        self.ending = None
        self.seed_end = self.seeded = offset
        if resume.gap_end > offset:
            self.skip_to(resume.gap_end)
        elif resume.seed_end > offset:
            self.seed_end = self.position = resume.seed_end
        self.state = LaneState.READY
        self.finish_if_done()

    def finish_if_done(self) -> None:
        until = self.assigned.until
        if self.state is LaneState.READY and until is not None and self.acknowledged >= until:
            self.state = LaneState.DONE


class Aligner:
    """Finds the place of lanes that have lost theirs. Control requests only, nothing of the lane in flight."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self.source = source
        self.destination = destination
        self.producer_id = producer_id

    def align(self, lanes: Iterable[Lane]) -> None:
        """Each lane ends READY, DONE or FAILED, or stays LOST when its leader is away at the moment."""
        wanted = {lane.partition: lane for lane in lanes}
        topics = {partition.topic for partition in wanted}
        source_view, destination_view = self.source.metadata(topics), self.destination.metadata(topics)
        for lane in list(wanted.values()):
            if not self._route(lane, source_view, destination_view):
                del wanted[lane.partition]
        if not wanted:
            return
        # Only after a change of leaders (KIP-101): where the epoch that we know has ended in the new leader's log.
        changed = {p: lane.vouched_epoch for p, lane in wanted.items() if lane.vouched_epoch != lane.source_epoch}
        ends = epoch_ends(self.source, {p: epoch for p, epoch in changed.items() if epoch is not None})
        with Histories(self.source, self.destination) as histories:
            for partition, seen in self._settled(list(wanted)).items():
                self._decide(wanted[partition], seen, ends.get(partition), histories)

    def _route(self, lane: Lane, source: ClusterView, destination: ClusterView) -> bool:
        """Find both leaders; False when the lane cannot be aligned now."""
        partition = lane.partition
        for view, client, expected in (
            (source, self.source, lane.assigned.source_topic_id),
            (destination, self.destination, lane.assigned.destination_topic_id),
        ):
            cluster, topic = client.name, view.topics.get(partition.topic)
            if partition.topic in view.denied:
                lane.fail(denied(client, partition, "DESCRIBE"), None, FailureKind.DENIED)
                return False
            if topic is None or partition.index not in topic.partitions:
                kind = FailureKind.GONE if client is self.source else FailureKind.REPLACED
                lane.fail(
                    f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None, kind
                )
                return False
            if topic.id != expected:
                lane.fail(
                    f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
                    f"(topic id {topic.id}, was {expected})",
                    None,
                    FailureKind.RECREATED if client is self.source else FailureKind.REPLACED,
                )
                return False
        source_leader = source.topics[partition.topic].partitions[partition.index]
        lane.source_broker, lane.source_epoch = source_leader.broker, source_leader.epoch
        lane.destination_broker = destination.topics[partition.topic].partitions[partition.index].broker
        return lane.source_broker >= 0 and lane.destination_broker >= 0

    def _settled(self, partitions: list[Partition]) -> dict[Partition, Seen]:
        """Both logs at a moment when nobody appends: the log end is the same before and after the producer's state.

        A predecessor's last requests may still be on their way into the log (they cannot do harm, see decide.position).
        """
        found: dict[Partition, tuple[Offset, Ours | None]] = {}
        starts = list_offsets(self.source, partitions, Point.START)
        log_starts = list_offsets(self.destination, partitions, Point.START)
        waiting = partitions
        for _ in range(_SETTLE_TRIES):
            before = list_offsets(self.destination, waiting, Point.LOG_END)
            producers = describe_producers(self.destination, waiting)
            after = list_offsets(self.destination, waiting, Point.LOG_END)
            for partition in waiting:
                if before[partition] == after[partition]:
                    ours = [p for p in producers[partition] if p.producer_id == self.producer_id]
                    found[partition] = after[partition], _ours(ours[0]) if ours else None
            waiting = [p for p in waiting if p not in found]
            if not waiting:
                break
            time.sleep(_SETTLE_WAIT_S)
        else:
            raise Unreachable(
                f"cluster {self.destination.name}: {waiting[0]} keeps growing: another copier of this mirror is at work"
            )
        # The source's end is read last: it only grows, so a position beyond it was never there.
        ends = list_offsets(self.source, partitions, Point.LOG_END)
        return {
            partition: Seen(
                log_start=log_starts[partition],
                log_end=log_end,
                ours=ours,
                source_start=starts[partition],
                source_end=ends[partition],
            )
            for partition, (log_end, ours) in found.items()
        }

    def _decide(self, lane: Lane, seen: Seen, epoch_end: int | None, histories: Histories) -> None:
        match where_to_resume(seen):
            case Stop(position, reason):
                self._agrees(histories, lane, position, epoch_end, reason)
            case Foreign(expected, filled):
                first = tail.first_foreign(
                    self.destination, lane.partition, self.producer_id, filled, seen.log_start, seen.log_end
                )
                if first is None:
                    words = overfilled(self.destination.name, lane.partition, expected, seen.log_end)
                    lane.fail(words, expected, FailureKind.WORN_OUT)
                else:
                    lane.fail(foreign(self.destination.name, lane.partition, first), first, FailureKind.FOREIGN)
            case Resume() as resume:
                problem = self._tail_differs(lane.partition, resume.offset) if resume.check_tail else None
                if problem:
                    lane.fail(problem, resume.offset - 1, FailureKind.DIVERGED)
                    return
                doubtful = epoch_end is not None and resume.offset > epoch_end
                if doubtful and not self._agrees(histories, lane, resume.offset, epoch_end):
                    return
                lane.aligned = Aligned(partition=lane.partition, source_epoch=lane.source_epoch)
                lane.forgotten = seen.ours is None
                if seen.ours is None:
                    lane.claim.forget()
                else:
                    lane.claim.seen(seen.ours.coordinator_epoch)
                lane.resume_at(resume)

    def _agrees(self, histories: Histories, lane: Lane, position: int, epoch_end: int | None, reason: str = "") -> bool:
        """Whether the source still holds what was copied; fails the lane where it does not, and when it can be told."""
        try:
            found = histories.first_divergence(lane.partition, Offset(position), epoch_end)
        except Undecided:
            return False  # the lane stays LOST and is looked at again
        except MissingPermission as error:
            lane.fail(str(error), position, FailureKind.DENIED)
            return False
        if found is not None:
            words = reason or "the source lost records that were copied (unclean leader election)"
            lane.fail(
                f"cluster {self.source.name}, {lane.partition}: {words}; from offset {found} on cluster "
                f"{self.destination.name} holds {position - found} offsets that the source does not have",
                found,
                FailureKind.DIVERGED,
            )
        return found is None

    def _tail_differs(self, partition: Partition, offset: int) -> str | None:
        theirs = tail.last_record(self.source, partition, offset)
        # Equal tails also say that there is no marker too many: behind that record the source has nothing either.
        if theirs is None or tail.record_at(self.destination, partition, theirs.offset) == theirs:
            return None
        return (
            f"cluster {self.destination.name}, {partition}: offset {theirs.offset} does not hold what cluster "
            f"{self.source.name} has there; somebody else wrote to the mirror topic, or the clusters diverged: "
            "compare both (mirrorbook parity)"
        )


def _ours(view: ProducerView) -> Ours:
    return Ours((view.last_sequence + 1) & SEQUENCE_MASK, view.coordinator_epoch)


def denied(client: ClusterClient, partition: Partition, operation: str) -> str:
    """The words for a right on the partition's topic that the client's principal lacks."""
    user = client.config.user(client.principal) or "<its principal>"
    return (
        f"cluster {client.name}, {partition}: the data principal may not {operation}; grant it: kafka-acls --add "
        f"--allow-principal User:{user} --operation {operation} --topic {partition.topic}"
    )


def may_not_mark(client: ClusterClient, partition: Partition) -> str:
    """The words for the right that filling gaps takes."""
    user = client.config.user(client.principal) or "<its principal>"
    return (
        f"cluster {client.name}, {partition}: its log has gaps (transactions, compaction), and the data principal may "
        f"not write the markers that fill them; grant it: kafka-acls --add --allow-principal User:{user} --operation "
        "ClusterAction --cluster"
    )


def foreign(cluster: str, partition: Partition, offset: int) -> str:
    """The words for a record that somebody else wrote into a mirror partition."""
    return (
        f"cluster {cluster}, {partition}: offset {offset} was not written by this mirror; from there on offsets "
        "would be shifted. Find who may WRITE to the topic (mirrorbook cluster check)"
    )


def overfilled(cluster: str, partition: Partition, expected: int, log_end: int) -> str:
    """The words for a log that our own markers have made too long."""
    return (
        f"cluster {cluster}, {partition}: the log ends at {log_end}, and should end at {expected}: a gap was filled by "
        "more markers than it has offsets (two copiers of this mirror at the same moment?); from there on offsets "
        "would be shifted. Delete the mirror topic and let it be copied anew"
    )


def by_broker(lanes: Iterable[Lane]) -> Mapping[int, list[Lane]]:
    """Lanes to be fetched, by the source broker that leads them."""
    found: dict[int, list[Lane]] = {}
    for lane in lanes:
        if lane.fetchable:
            found.setdefault(lane.source_broker, []).append(lane)
    return found

"""One lane a partition: where its copying stands, and what waits in it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import xxhash

from mirror_core.decide.gaps import NO_MARKER
from mirror_core.decide.position import Resume
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.copying import Aligned, Assigned, Failure
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import SEQUENCE_MASK

_LOOK_AGAIN_S: Final = 0.02
_LOOK_AGAIN_AT_MOST_S: Final = 1.0
_QUEUE_BYTES: Final = 1 << 20
"""Of a lane's batches that wait for a gap; then no more are fetched."""


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


class Hidden(NamedTuple):
    """Offsets [base, end) that hold no record on the source, in a mirror that uses them up by hidden records."""

    base: int
    end: int
    sequence: int
    time_ms: int


class Sent(NamedTuple):
    """What is remembered of a batch in flight."""

    lane: Lane
    base: int
    records: int
    size: int
    payload: bytes
    """XXH3-128 of the bytes after the header; empty where records stand for nothing: hidden ones, and seeds."""


@dataclass(slots=True)
class Claim:
    """The right to fill a partition's gaps. Whoever wrote the newest marker has it, as long as all of theirs are
    answered; anybody else waits until the log has been quiet for a while, and shuts the last owner out."""

    newest: int = NO_MARKER
    """Highest coordinator epoch known to have been sent to this partition, by anybody."""
    mine: int = NO_MARKER
    """The newest marker of ours that is known to be in the log, with nothing of ours unanswered."""
    handed: int = NO_MARKER
    """The same of the task before us, which has ended (`copy.handover`)."""
    quiet_at: int = -1
    """The log end that is watched."""
    quiet_until: float = 0.0
    """Monotonic time until which it must not have moved."""

    @property
    def owned(self) -> bool:
        return self.newest != NO_MARKER and self.newest in (self.mine, self.handed)

    def seen(self, coordinator_epoch: int) -> None:
        """Take in what the leader remembers."""
        self.newest = max(self.newest, coordinator_epoch)

    def unanswered(self) -> None:
        """Markers of ours are on their way."""
        self.mine = self.handed = NO_MARKER

    def forget(self) -> None:
        """The leader has forgotten all markers, and would take any."""
        self.newest = self.mine = self.handed = NO_MARKER


@dataclass(slots=True, eq=False)
class Lane:
    """A partition being copied. Offsets are next offsets: to fetch (`position`), and after the last acknowledged."""

    assigned: Assigned
    hides: bool = False
    """Gaps are used up by hidden records, which go the way of data, and not by markers."""
    state: LaneState = LaneState.LOST
    lost_why: str = ""
    """For people: what made it lose its place, or keeps it from finding it."""
    losses: int = 0
    """Since something was acknowledged."""
    look_at: float = 0.0
    """Monotonic time before which a lost lane is not looked at again."""
    position: int = 0
    acknowledged: int = 0
    sequence: int = 0
    """Of the next batch to be put into line."""
    acknowledged_sequence: int = 0
    """After the last acknowledged batch."""
    forgotten: bool = False
    """The leader remembers nothing of us: it takes any sequence from a batch, and after a marker only 0."""
    queue: deque[Gap | Hidden | tuple[Sent, memoryview]] = field(default_factory=deque)
    """What waits for a gap before it to be filled; begins with a gap, and bytes in it are its own."""
    queued_bytes: int = 0
    hiding: deque[tuple[int, int]] = field(default_factory=deque)
    """Offsets [base, end) of batches of hidden records in flight."""
    newest_ms: int = -1
    """Time of the newest batch in line. Hidden records take it over: so no lookup by time finds another segment than
    it would without them, and brokers remember the producer as long as for its data (they go by its last batch)."""
    claim: Claim = field(default_factory=Claim)
    known_at: float = -math.inf
    """Monotonic time at which something was asked whose answer told that the log ends at `acknowledged`; of use while
    nothing is in flight."""
    seed_end: int = 0
    """Below it nothing is fetched: the log is seeded up to there, since the source starts there."""
    seeded: int = 0
    """Next offset to be seeded."""
    asked: int = -1
    """The position of the newest Fetch; its answer is of use only while the lane still stands there."""
    suspect: bool = False
    """The source gave nothing though there should be something: it is asked for this partition alone."""
    empty: int = 0
    """Answers in a row that said so. Those that remote storage should have given prove nothing, and are not counted
    further."""
    local_start: int = 0
    """Before it the source's leader holds nothing itself (`kafka.tiered`), as far as it was asked."""
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
        # Before markers fill the last gap, its true end must be known, also where that is further than `until`.
        return self.hides or not self.queue or self.claim.owned or self.gap_known

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

    @property
    def awaits_remote(self) -> bool:
        """Remote storage of the source was to give what comes next, and gave nothing again and again."""
        return self.state is LaneState.READY and self.empty > 0 and self.position < self.local_start

    def lose(self, why: str) -> None:
        """Its place must be found anew; soon at first, then less often, while nothing comes through."""
        self.state, self.lost_why = LaneState.LOST, why
        self.look_at = time.monotonic() + min(_LOOK_AGAIN_S * 2.0**self.losses, _LOOK_AGAIN_AT_MOST_S)
        self.losses = min(self.losses + 1, 10)

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
        if self.hides:
            self._hide(end)
            return
        if self.forgotten:
            self.sequence = self.acknowledged_sequence = 0
            self.forgotten = False
        if self.queue and isinstance(self.queue[-1], Gap):
            self.queue.pop()
        self.queue.append(Gap(end))
        self.position = end

    def _hide(self, end: int) -> None:
        last = self.queue[-1] if self.queue else None
        if isinstance(last, Hidden):
            self.queue[-1] = last._replace(end=end)
        else:
            self.queue.append(Hidden(self.position, end, self.sequence, self.newest_ms))
        self.sequence = (self.sequence + end - self.position) & SEQUENCE_MASK
        self.position = end

    def filled(self, offsets: int) -> None:
        """So many offsets of the first gap are filled."""
        self.losses = 0
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
            # Hidden records count as records there. Those of ours are known; of a twin's nobody can tell.
            self.gaps += sum(max(0, min(end, offset) - base) for base, end in self.hiding)
            self.first = min(self.first, offset)
            self.digest = None
        self.position = self.acknowledged = offset
        self.sequence = self.acknowledged_sequence = resume.sequence
        self.queue.clear()
        self.queued_bytes = 0
        self.hiding.clear()
        self.newest_ms = resume.newest_ms
        self.suspect, self.empty = False, 0
        self.local_start = 0
        self.readable_end = None
        self.known_at = -math.inf
        self.ending = None
        self.seed_end = self.seeded = offset
        if resume.gap_end > offset:
            self.skip_to(resume.gap_end)
        elif resume.seed_end > offset:
            self.seed_end = self.position = resume.seed_end
        self.state, self.lost_why = LaneState.READY, ""
        self.finish_if_done()

    def finish_if_done(self) -> None:
        until = self.assigned.until
        if self.state is LaneState.READY and until is not None and self.acknowledged >= until:
            self.state = LaneState.DONE


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


def not_now(cluster: str, partition: Partition, offset: int, error: str, remedy: str = "") -> str:
    """The words for an error that passes by itself, or once somebody has mended a cluster."""
    return f"cluster {cluster}, {partition}, offset {offset}: {error}" + (f": {remedy}" if remedy else "")


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

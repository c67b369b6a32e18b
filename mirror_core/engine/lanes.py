"""One lane a partition: where its copying stands, and how it finds its place on the destination."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import xxhash

from mirror_core.decide.position import Foreign, Resume, Seen, Stop, where_to_resume
from mirror_core.kafka import tail
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.offsets import Point, describe_producers, list_offsets
from mirror_core.model.copying import Assigned, Failure
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset, Partition

_SETTLE_TRIES: Final = 50
_SETTLE_WAIT_S: Final = 0.02


class LaneState(Enum):
    LOST = "lost"
    """Position not known: to be read from the destination when nothing is in flight any more."""
    READY = "ready"
    DONE = "done"
    """Copied up to the end that was asked for."""
    FAILED = "failed"


@dataclass(slots=True)
class Lane:
    """A partition being copied. Offsets are next offsets: to fetch (`position`), and after the last acknowledged."""

    assigned: Assigned
    state: LaneState = LaneState.LOST
    position: int = 0
    acknowledged: int = 0
    asked: int = -1
    """The position of the newest Fetch; its answer is of use only while the lane still stands there."""
    in_flight: int = 0
    ending: Failure | None = None
    """Why the lane will fail once what was sent before is acknowledged."""
    source_broker: int = -1
    destination_broker: int = -1
    source_epoch: int = -1
    first: int | None = None
    source_end: int | None = None
    batches: int = 0
    sent_bytes: int = 0
    digest: xxhash.xxh3_128 | None = field(default_factory=xxhash.xxh3_128)
    failure: Failure | None = None

    @property
    def partition(self) -> Partition:
        return self.assigned.partition

    @property
    def fetchable(self) -> bool:
        """More may be asked of the source."""
        until = self.assigned.until
        return self.state is LaneState.READY and self.ending is None and (until is None or self.position < until)

    def fail(self, reason: str, offset: int | None) -> None:
        """Stop at once."""
        self.state = LaneState.FAILED
        self.failure = Failure(
            partition=self.partition, reason=reason, offset=None if offset is None else Offset(offset)
        )

    def end(self, reason: str, offset: int) -> None:
        """Fail at this offset, after all before it has been acknowledged."""
        self.ending = Failure(partition=self.partition, reason=reason, offset=Offset(offset))

    def settle_end(self) -> None:
        if self.ending is not None and self.state is LaneState.READY and self.acknowledged == self.position:
            self.state, self.failure = LaneState.FAILED, self.ending

    def resume_at(self, offset: int) -> None:
        """Take up copying here, where the destination's log ends.

        What was in flight and turns out to be appended was never acknowledged to us, so no digest can vouch for it.
        """
        if self.first is None:
            self.first = offset
        elif offset != self.acknowledged:
            self.first = min(self.first, offset)
            self.digest = None
        self.position = self.acknowledged = offset
        self.ending = None
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
        for partition, seen in self._settled(list(wanted)).items():
            self._decide(wanted[partition], seen)

    def _route(self, lane: Lane, source: ClusterView, destination: ClusterView) -> bool:
        """Find both leaders; False when the lane cannot be aligned now."""
        partition = lane.partition
        for view, client, expected in (
            (source, self.source, lane.assigned.source_topic_id),
            (destination, self.destination, lane.assigned.destination_topic_id),
        ):
            cluster, topic = client.name, view.topics.get(partition.topic)
            if partition.topic in view.denied:
                lane.fail(denied(client, partition, "DESCRIBE"), None)
                return False
            if topic is None or partition.index not in topic.partitions:
                lane.fail(f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None)
                return False
            if topic.id != expected:
                lane.fail(
                    f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
                    f"(topic id {topic.id}, was {expected}); delete the mirror topic to copy the new one",
                    None,
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
        found: dict[Partition, Seen] = {}
        starts = list_offsets(self.source, partitions, Point.START)
        ends = list_offsets(self.source, partitions, Point.LOG_END)
        log_starts = list_offsets(self.destination, partitions, Point.START)
        waiting = partitions
        for _ in range(_SETTLE_TRIES):
            before = list_offsets(self.destination, waiting, Point.LOG_END)
            producers = describe_producers(self.destination, waiting)
            after = list_offsets(self.destination, waiting, Point.LOG_END)
            for partition in waiting:
                if before[partition] == after[partition]:
                    ours = [p for p in producers[partition] if p.producer_id == self.producer_id]
                    last = ours[0].last_sequence if ours and ours[0].last_sequence >= 0 else None
                    found[partition] = Seen(
                        log_start=log_starts[partition],
                        log_end=after[partition],
                        last_sequence=last,
                        source_start=starts[partition],
                        source_end=ends[partition],
                    )
            waiting = [p for p in waiting if p not in found]
            if not waiting:
                return found
            time.sleep(_SETTLE_WAIT_S)
        raise Unreachable(
            f"cluster {self.destination.name}: {waiting[0]} keeps growing: another copier of this mirror is at work"
        )

    def _decide(self, lane: Lane, seen: Seen) -> None:
        match where_to_resume(seen):
            case Stop(offset, reason):
                lane.fail(f"cluster {self.source.name}, {lane.partition}: {reason}", offset)
            case Foreign():
                offset = tail.first_foreign(
                    self.destination, lane.partition, self.producer_id, seen.log_start, seen.log_end
                )
                lane.fail(foreign(self.destination.name, lane.partition, offset), offset)
            case Resume(offset, check_tail):
                problem = self._tail_differs(lane.partition, offset) if check_tail else None
                if problem:
                    lane.fail(problem, offset - 1)
                else:
                    lane.resume_at(offset)

    def _tail_differs(self, partition: Partition, offset: int) -> str | None:
        theirs = tail.record_before(self.source, partition, offset)
        ours = tail.record_before(self.destination, partition, offset)
        if theirs is None or theirs == ours:
            # The source may have no batch that ends right there (compacted away); parity will compare what it has.
            return None
        return (
            f"cluster {self.destination.name}, {partition}: offset {offset - 1} does not hold what cluster "
            f"{self.source.name} has there; somebody else wrote to the mirror topic, or the clusters diverged. "
            "Compare both (mirrorbook parity), then delete the mirror topic and let it be copied anew"
        )


def denied(client: ClusterClient, partition: Partition, operation: str) -> str:
    """The words for a right on the partition's topic that the client's principal lacks."""
    user = client.config.user(client.principal) or "<its principal>"
    return (
        f"cluster {client.name}, {partition}: the data principal may not {operation}; grant it: kafka-acls --add "
        f"--allow-principal User:{user} --operation {operation} --topic {partition.topic}"
    )


def foreign(cluster: str, partition: Partition, offset: int) -> str:
    """The words for a record that somebody else wrote into a mirror partition."""
    return (
        f"cluster {cluster}, {partition}: offset {offset} was not written by this mirror; from there on offsets "
        "would be shifted. Find who may WRITE to the topic (mirrorbook cluster check), then delete the mirror topic "
        "and let it be copied anew"
    )


def by_broker(lanes: Iterable[Lane]) -> Mapping[int, list[Lane]]:
    """Lanes to be fetched, by the source broker that leads them."""
    found: dict[int, list[Lane]] = {}
    for lane in lanes:
        if lane.fetchable:
            found.setdefault(lane.source_broker, []).append(lane)
    return found

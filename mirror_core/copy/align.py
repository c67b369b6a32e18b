"""How a lane finds its place: both clusters are asked where the log ends, and `decide.position` decides."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.copy import tail
from mirror_core.copy.divergence import Histories, Undecided
from mirror_core.copy.partition import Lane, denied, foreign, overfilled
from mirror_core.decide.position import Foreign, Ours, Resume, Seen, Stop, ours_behind_data, where_to_resume
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.epochs import epoch_ends
from mirror_core.kafka.offsets import Point, ProducerView, describe_producers, high_watermarks, list_offsets
from mirror_core.model.copying import Aligned
from mirror_core.model.errors import MissingPermission
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import SEQUENCE_MASK
from mirror_core.wire.records import Record

_SETTLE_TRIES: Final = 10
_SETTLE_WAIT_S: Final = 0.02


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
            for partition, seen in self._settled(wanted).items():
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
        away = [
            client.name
            for broker, client in ((lane.source_broker, self.source), (lane.destination_broker, self.destination))
            if broker < 0
        ]
        if away:
            lane.lose(f"cluster {away[0]}: no leader for {partition}: bring the brokers of its replicas back")
        return not away

    def _settled(self, lanes: Mapping[Partition, Lane]) -> dict[Partition, Seen]:
        """Both logs at a moment when nobody appends: the log end is the same before and after the producer's state,
        and all in-sync replicas have it. What a leader alone holds is not copied yet: it may lose it (KIP-966).

        A predecessor's last requests may still be on their way into the log (they cannot do harm, see decide.position).
        Lanes that come to no rest stay LOST, and hold up no others.
        """
        partitions = list(lanes)
        found: dict[Partition, tuple[Offset, Ours | None]] = {}
        starts = list_offsets(self.source, partitions, Point.START)
        log_starts = list_offsets(self.destination, partitions, Point.START)
        waiting, why = partitions, dict[Partition, str]()
        for _ in range(_SETTLE_TRIES):
            before = list_offsets(self.destination, waiting, Point.LOG_END)
            producers = describe_producers(self.destination, waiting)
            replicated = high_watermarks(self.destination, waiting)
            after = list_offsets(self.destination, waiting, Point.LOG_END)
            for partition in waiting:
                where = f"cluster {self.destination.name}, {partition}"
                if before[partition] != after[partition]:
                    why[partition] = f"{where} keeps growing: another copier of this mirror is at work"
                elif (upto := replicated.get(partition)) is None or upto < after[partition]:
                    why[partition] = (
                        f"{where}: the log ends at {after[partition]}, and its replicas have it up to "
                        f"{'nobody knows where' if upto is None else f'{upto} only'}: they are behind, or fewer than "
                        "min.insync.replicas are in sync"
                    )
                else:
                    ours = [p for p in producers[partition] if p.producer_id == self.producer_id]
                    found[partition] = after[partition], _ours(ours[0]) if ours else None
            waiting = [p for p in waiting if p not in found]
            if not waiting:
                break
            time.sleep(_SETTLE_WAIT_S)
        for partition in waiting:
            lanes[partition].lose(why[partition])
        # The source's end is read last: it only grows, so a position beyond it was never there.
        ends = list_offsets(self.source, found, Point.LOG_END) if found else {}
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
        found = where_to_resume(seen)
        if isinstance(found, Foreign):
            seen = self._remembered(lane.partition, seen)
            found = where_to_resume(seen)
        match found:
            case Stop(position, reason, check_tail):
                if check_tail and (self._strangers(lane, seen, None) or self._markers_too_many(lane, seen, None)):
                    return
                self._agrees(histories, lane, position, epoch_end, reason)
            case Foreign(expected, filled):
                first = tail.first_foreign(
                    self.destination, lane.partition, self.producer_id, filled, seen.log_start, seen.log_end
                )
                if first is None:
                    self._overfilled(lane, expected, seen.log_end)
                else:
                    lane.fail(foreign(self.destination.name, lane.partition, first), first, FailureKind.FOREIGN)
            case Resume() as resume:
                if resume.check_tail and not self._tail_agrees(lane, seen):
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

    def _remembered(self, partition: Partition, seen: Seen) -> Seen:
        """The same with the markers that a leader has forgotten.

        A new replica, or one that has crashed, knows of us what its log tells, and of a log that was cleaned the
        markers may be gone. Not the newest ones: the cleaner leaves the last segment alone. So behind data there is
        none, and no gap is half filled. That it is our data, at its own offset, the source's record there tells, too.
        """
        if seen.ours is None or seen.log_end > seen.source_end:
            return seen
        last = tail.last_behind_a_hole(self.destination, partition, self.producer_id, seen.log_start, seen.log_end)
        if last is None or not self._tail(partition, seen.log_end)[1]:
            return seen
        sequence = (last.base_sequence + last.last_offset_delta + 1) & SEQUENCE_MASK
        if sequence != seen.ours.next_sequence:
            return seen
        return replace(seen, ours=ours_behind_data(seen.log_end, sequence))

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

    def _tail_agrees(self, lane: Lane, seen: Seen) -> bool:
        """Whether the last record that the source has below the position is on the destination, too, and nobody else's
        behind it, where the source has a gap; fails the lane where not.

        Equal tails also say that there is no marker too many: behind that record the source has nothing either.
        """
        partition, end = lane.partition, seen.log_end
        theirs, here_too = self._tail(partition, end)
        if theirs is None or here_too:
            return not self._strangers(lane, seen, None if theirs is None else theirs.offset)
        if not (self._strangers(lane, seen, None) or self._markers_too_many(lane, seen, theirs.offset)):
            lane.fail(
                f"cluster {self.destination.name}, {partition}: offset {theirs.offset} does not hold what cluster "
                f"{self.source.name} has there; somebody else wrote to the mirror topic, or the clusters diverged: "
                "compare both (mirrorbook parity)",
                theirs.offset,
                FailureKind.DIVERGED,
            )
        return False

    def _tail(self, partition: Partition, end: int) -> tuple[Record | None, bool]:
        """The source's last record below `end`, and whether it is on the destination, too; so is none."""
        theirs = tail.last_record(self.source, partition, end)
        return theirs, theirs is None or tail.record_at(self.destination, partition, theirs.offset) == theirs

    def _strangers(self, lane: Lane, seen: Seen, since: int | None) -> bool:
        """Whether somebody else wrote behind what we wrote, from offset `since` on; fails the lane if so."""
        first = tail.stranger_behind(
            self.destination, lane.partition, self.producer_id, seen.log_start, seen.log_end, since
        )
        if first is not None:
            lane.fail(foreign(self.destination.name, lane.partition, first), first, FailureKind.FOREIGN)
        return first is not None

    def _markers_too_many(self, lane: Lane, seen: Seen, missing: int | None) -> bool:
        """Whether our own markers have made the log too long, where the count cannot tell; fails the lane if so.

        A leader that knows only markers of ours may have forgotten the data before them. But a source that has not
        changed its leader since both sides agreed has lost nothing (KIP-101), and nobody else has written here.
        `missing`: an offset whose record the source has and the destination does not; None: it ends before.
        """
        if seen.ours is None or seen.ours.next_sequence or lane.vouched_epoch != lane.source_epoch:
            return False
        self._overfilled(lane, seen.source_end if missing is None else missing, seen.log_end)
        return True

    def _overfilled(self, lane: Lane, expected: int, log_end: int) -> None:
        words = overfilled(self.destination.name, lane.partition, expected, log_end)
        lane.fail(words, expected, FailureKind.WORN_OUT)


def _ours(view: ProducerView) -> Ours:
    return Ours((view.last_sequence + 1) & SEQUENCE_MASK, view.coordinator_epoch, view.newest_ms)

"""How partitions find their place: both clusters are asked where the logs end, and `copy.verdict` decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from mirror_core.copy.beside import Beside
from mirror_core.copy.endings import ending_as_sent
from mirror_core.copy.looks import AT_ONCE, Case, Looks, Told, unreadable
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.states import State
from mirror_core.copy.verdict import Resumes, take_in
from mirror_core.copy.words import Side, denied
from mirror_core.decide.assign import in_turn
from mirror_core.decide.position import ANYWHERE, Ours, Seen
from mirror_core.kafka.client import ClusterClient, ClusterView, Leader
from mirror_core.kafka.epochs import epoch_ends
from mirror_core.kafka.looking import LogLook, ends_of, look
from mirror_core.kafka.offsets import Point, ProducerView
from mirror_core.kafka.placing import known_ids
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import ClusterName, Partition
from mirror_core.wire.batch import SEQUENCE_MASK

_NO_ID: Final = "0" * 32
_SETTLE_TRIES: Final = 10
_SETTLE_WAIT_S: Final = 0.02
_BRIEF_S: Final = 0.5
_KEPT_S: Final = 10.0
"""For so long a verdict, which may have taken minutes, waits for connections to the leaders, and for the driver."""
_TURN: Final = AT_ONCE // 2
"""Of the looks that begin first, so many are others in the next epoch."""


class _Kept(NamedTuple):
    found: Resumes
    until: float
    """Monotonic time."""


class Aligner:
    """Finds the place of partitions that have lost theirs. Control requests only, nothing of theirs in flight."""

    def __init__(
        self,
        source: ClusterClient,
        destination: ClusterClient,
        producer_id: int,
        connected: Callable[[list[PartitionReplicator]], list[PartitionReplicator]],
        beside: Beside,
        epoch: int = 0,
    ) -> None:
        """`connected`: those whose leaders answer, of both sides; the others know why they wait. `epoch`: whose turn it
        is to be looked at first."""
        self.source = source
        self.destination = destination
        self.producer_id = producer_id
        self._connected = connected
        self._ids: dict[tuple[ClusterName, str], frozenset[str]] = {}
        """Of topics that one broker has called gone, as all brokers know them; for one round."""
        self._proved: dict[Partition, int] = {}
        """Up to where both sides were compared, if the leader of that time leads the destination; for one round."""
        self._looks = Looks(source, destination, producer_id, beside)
        self._kept: dict[PartitionReplicator, _Kept] = {}
        """What looks have told of those that cannot go on at this moment."""
        self._connect_at = 0.0
        """Monotonic time before which those are not asked for again."""
        self._shift = epoch * _TURN

    def align(self, replicators: Iterable[PartitionReplicator]) -> None:
        """Each ends READY, DONE or FAILED, or stays LOST when its leader is away at the moment, or while its logs are
        looked into."""
        self._ids.clear()
        self._proved.clear()
        wanted = {replicator.partition: replicator for replicator in replicators}
        topics = {partition.topic for partition in wanted}
        source_view, destination_view = self.source.metadata(topics), self.destination.metadata(topics)
        routed = [one for one in wanted.values() if self._route(one, source_view, destination_view)]
        wanted = {replicator.partition: replicator for replicator in self._connected(routed)}
        if not wanted:
            return
        agreed = self._agreed(wanted)
        asked = time.monotonic()
        settled = self._settled(wanted)
        # Where there is most to copy, first: those for whom the time is not enough are looked at in the next round.
        behind = sorted(settled, key=lambda p: settled[p].log_end - settled[p].source_end)
        chosen = in_turn(behind, self._shift)
        self._take(self._looks.begin([Case(wanted[p], settled[p], agreed.get(p), asked) for p in chosen]))

    @property
    def at_work(self) -> bool:
        return self._looks.at_work

    def take_in(self) -> None:
        """What looks into logs have told. Who has failed meanwhile stays so; who has lost its leaders is to wait."""
        now = time.monotonic()
        for one, found in self._told():
            if isinstance(found, Resumes):
                self._kept[one], self._connect_at = _Kept(found, now + _KEPT_S), now
            else:
                self._take([(one, found)])
        if self._kept and now >= self._connect_at:
            self._connect_at = now + _BRIEF_S
            self._resume_connected(now)

    def _resume_connected(self, now: float) -> None:
        """All at once: while nothing is copied, connections are waited for. Who is not connected, or waits for what was
        deleted to be recorded, is asked again."""
        kept = self._released()
        for one in self._connected([one for one in kept if not one.ended]):
            self._take([(one, kept[one].found)])
        self._kept = {one: verdict for one, verdict in kept.items() if one.state is State.LOST and now < verdict.until}
        for one in self._kept:
            one.wait(one.lost_why, beside=True)

    def finish(self, limit_s: float, cancelled: Callable[[], bool]) -> int:
        """The last word on looks that are under way, so long at most: their verdicts count, though nothing is sent. How
        many were cut short by that limit."""
        end = time.monotonic() + limit_s
        self._take((one, verdict.found) for one, verdict in self._released().items() if not one.ended)
        self._take(self._told())
        while self._looks.at_work and not cancelled() and (rest_s := end - time.monotonic()) > 0:
            self._looks.wait(min(rest_s, _BRIEF_S))
            self._take(self._told())
        cut_short = 0 if cancelled() else self._looks.under_way
        self.close()
        return cut_short

    def _released(self) -> dict[PartitionReplicator, _Kept]:
        kept, self._kept = self._kept, {}
        for one in kept:
            one.wait(one.lost_why)
        return kept

    def _told(self) -> Iterator[Told]:
        return ((one, found) for one, found in self._looks.told() if not one.ended)

    def _take(self, told: Iterable[Told]) -> None:
        for replicator, found in told:
            if isinstance(found, RemoteFault):
                unreadable(replicator, found)
            else:
                take_in(replicator, found, self.source.name)

    def close(self) -> None:
        self._looks.close()
        self._released()

    def _route(self, replicator: PartitionReplicator, source: ClusterView, destination: ClusterView) -> bool:
        """Find both leaders; False when it cannot be aligned now."""
        partition, assigned = replicator.partition, replicator.assigned
        for view, client, expected in (
            (source, self.source, assigned.source_topic_id),
            (destination, self.destination, assigned.destination_topic_id),
        ):
            cluster, topic = client.name, view.topics.get(partition.topic)
            if partition.topic in view.denied:
                replicator.fail(denied(Side.of(client), partition, "DESCRIBE"), None, FailureKind.DENIED)
                return False
            gone = topic is None or topic.id != expected or partition.index not in topic.partitions
            if gone and self._disputed(client, partition.topic, expected, None if topic is None else topic.id):
                replicator.lose(f"cluster {cluster}: its brokers do not all say the same of topic {partition.topic}")
                return False
            if topic is None or partition.index not in topic.partitions:
                kind = FailureKind.GONE if client is self.source else FailureKind.REPLACED
                replicator.fail(
                    f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None, kind
                )
                return False
            if topic.id != expected:
                replicator.fail(
                    f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
                    f"(topic id {topic.id}, was {expected})",
                    None,
                    FailureKind.RECREATED if client is self.source else FailureKind.REPLACED,
                )
                return False
        from_leader = source.topics[partition.topic].partitions[partition.index]
        to_leader = destination.topics[partition.topic].partitions[partition.index]
        self._doubt_who_told(replicator, from_leader, to_leader)
        if assigned.proved_end is not None and assigned.proved_epoch == to_leader.epoch:
            self._proved[partition] = assigned.proved_end
        replicator.route(from_leader.broker, from_leader.epoch, to_leader.broker)
        away = [
            client.name
            for broker, client in ((from_leader.broker, self.source), (to_leader.broker, self.destination))
            if broker < 0
        ]
        if away:
            replicator.lose(f"cluster {away[0]}: no leader for {partition}: bring the brokers of its replicas back")
        return not away

    def _doubt_who_told(self, replicator: PartitionReplicator, source: Leader, destination: Leader) -> None:
        """Where the leader that is told has turned out to be none before, or has led before the one that we know, the
        broker that tells it may be behind. It tells the truth of a partition without a leader."""
        misled = replicator.misled if replicator.losses > 1 else None
        known = replicator.source_broker, replicator.source_epoch
        if source.epoch < replicator.source_epoch or (
            misled == self.source.name and known == (source.broker, source.epoch)
        ):
            self.source.ask_another()
        if misled == self.destination.name and replicator.destination_broker == destination.broker:
            self.destination.ask_another()

    def _disputed(self, client: ClusterClient, topic: str, expected: str, found: str | None) -> bool:
        """Whether some broker still knows the topic that another one says is gone: either may be behind. So is who does
        not know a partition of it: nothing takes partitions away from a topic, as long as it has the same id."""
        if found == expected:
            return expected != _NO_ID
        if (client.name, topic) not in self._ids:
            self._ids[client.name, topic] = known_ids(client, [topic])[topic]
        return expected in self._ids[client.name, topic]

    def _agreed(self, wanted: dict[Partition, PartitionReplicator]) -> dict[Partition, int]:
        """Up to where both sides agreed last, of partitions whose leader on the source has changed since (KIP-101):
        where the epoch that we know has ended in the new leader's log. ANYWHERE where it doesn't know that epoch: a
        cluster that was restored from a backup begins again with older ones.
        """
        changed = {p: r.vouched_epoch for p, r in wanted.items() if r.vouched_epoch != r.source_epoch}
        past = {p: epoch for p, epoch in changed.items() if epoch is not None and epoch < wanted[p].source_epoch}
        ends = epoch_ends(self.source, past, _led(past, lambda p: wanted[p].source_broker))
        for partition, error in ends.unknown.items():
            unreadable(wanted.pop(partition), error, self.source.name)
        return {p: ends.offsets.get(p, ANYWHERE) for p in changed if p in wanted}

    def _settled(self, replicators: Mapping[Partition, PartitionReplicator]) -> dict[Partition, Seen]:
        """Both logs at a moment when nobody appends (`unsettled`).

        A predecessor's last requests may still be on their way into the log (they cannot do harm, see decide.position).
        Partitions that come to no rest stay LOST, and hold up no others.
        """
        found: dict[Partition, LogLook] = {}
        waiting, why, growing = list(replicators), dict[Partition, str](), set[Partition]()
        for _ in range(_SETTLE_TRIES):
            seen = look(self.destination, _led(waiting, lambda p: replicators[p].destination_broker))
            for p, error in seen.unknown.items():
                why[p] = str(error)
                if isinstance(error, MissingPermission):
                    unreadable(replicators[p], error)
            waiting = [p for p in waiting if p in seen.logs]
            for p in waiting:
                log = seen.logs[p]
                why[p] = unsettled(self.destination.name, p, log.before, log.after, log.replicated)
                if not why[p]:
                    found[p] = log
                elif log.before != log.after:
                    growing.add(p)
            waiting = [p for p in waiting if p not in found]
            if not waiting:
                break
            time.sleep(_SETTLE_WAIT_S)
        # The source's end is read last: it only grows, so a position beyond it was never there.
        led = _led(found, lambda p: replicators[p].source_broker)
        ends = ends_of(self.source, led, Point.START, Point.LOG_END)
        for p, one in replicators.items():
            if p not in ends and one.state is State.LOST:
                # A leader that its replicas do not follow may be one by its own word only.
                misled = self.source.name if p in found else None if p in growing else self.destination.name
                one.lose(why.get(p) or f"{p}: a leader does not say now where its log begins and ends", misled)
        as_sent = self._ending_as_sent(replicators, {p: found[p] for p in ends})
        return {
            p: Seen(
                log_start=found[p].start,
                log_end=found[p].after,
                ours=self._ours(found[p].producers),
                source_start=start,
                source_end=end,
                ends_as_sent=p in as_sent,
                proved_end=self._proved.get(p),
            )
            for p, (start, end) in ends.items()
        }

    def _ending_as_sent(
        self, replicators: Mapping[Partition, PartitionReplicator], logs: Mapping[Partition, LogLook]
    ) -> set[Partition]:
        """Of those that nobody vouches for, and that are looked at for the first time."""
        led: dict[int, dict[Partition, int]] = {}
        for p, log in logs.items():
            one = replicators[p]
            if one.aligned is None and not one.assigned.answered and log.start < log.after:
                led.setdefault(one.destination_broker, {})[p] = log.after
        return ending_as_sent(self.destination, led) if led else set()

    def _ours(self, producers: Iterable[ProducerView]) -> Ours | None:
        """What the destination's leader remembers of this mirror."""
        for view in producers:
            if view.producer_id == self.producer_id:
                return Ours((view.last_sequence + 1) & SEQUENCE_MASK, view.coordinator_epoch, view.newest_ms)
        return None


def _led(partitions: Iterable[Partition], broker: Callable[[Partition], int]) -> dict[int, list[Partition]]:
    """Partitions by the broker that leads them, as it was found a moment ago: who does not any more says so."""
    found: dict[int, list[Partition]] = {}
    for partition in sorted(partitions):
        found.setdefault(broker(partition), []).append(partition)
    return found


def unsettled(cluster: ClusterName, partition: Partition, before: int, after: int, replicated: int | None) -> str:
    """Why a look at the destination's log tells nothing; empty when it does: the log end is the same before and after
    the producer's state, and all in-sync replicas have it. What a leader alone holds is not copied yet: it may lose it
    (KIP-966).
    """
    where = f"cluster {cluster}, {partition}"
    if before != after:
        return f"{where} keeps growing: another copier of this mirror is at work"
    if replicated is not None and replicated >= after:
        return ""
    return (
        f"{where}: the log ends at {after}, and its replicas have it up to "
        f"{'nobody knows where' if replicated is None else f'{replicated} only'}: they are behind, or fewer than "
        "min.insync.replicas are in sync"
    )

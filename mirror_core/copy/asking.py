"""What both clusters say of partitions that look for their places: who leads them, and where their logs end.

In a thread beside the task's loop, by connections of its own: brokers that hang are waited for here, and what is copied
does not wait. It reads and writes nothing of the task's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirror_core.copy.endings import ending_as_sent
from mirror_core.decide.position import ANYWHERE, Ours, Seen
from mirror_core.kafka.at_once import Late
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.epochs import epoch_ends
from mirror_core.kafka.looking import LogLook, ends_of, look
from mirror_core.kafka.offsets import Point, ProducerView
from mirror_core.kafka.placing import Heard, heard_ids
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.names import ClusterName, Partition
from mirror_core.wire.batch import SEQUENCE_MASK

_SETTLE_TRIES: Final = 10
_SETTLE_WAIT_S: Final = 0.02


class Expected(NamedTuple):
    """A partition, and the ids that its topic should have; None: it does not matter now."""

    partition: Partition
    source_topic_id: str | None
    destination_topic_id: str | None


@dataclass(frozen=True, slots=True)
class View:
    """One cluster, as one broker described it."""

    cluster: ClusterView
    heard: Heard
    """What all brokers say of topics that this one has called gone, or replaced."""

    def undecided(self, topic: str) -> bool:
        """Whether that depends on somebody who has not answered."""
        return bool(self.heard.silent) and topic in self.heard.ids


class Views(NamedTuple):
    source: View
    destination: View


class Asked(NamedTuple):
    """A partition whose logs are asked for, and who leads it."""

    partition: Partition
    source_broker: int
    source_epoch: int
    vouched_epoch: int | None
    """Leader epoch of the source under which the copy was last known to agree with it."""
    destination_broker: int
    unvouched: bool
    """Nobody vouches for the end of the destination's log, and it is looked at for the first time."""
    proved_end: int | None
    """Up to where both sides were compared under the present leader of the destination."""


class Unsure(NamedTuple):
    """Why nothing is known of a partition now."""

    why: RemoteFault | str
    """`Late`: it is to be asked about apart from others."""
    misled: ClusterName | None
    """As in `PartitionReplicator.lose`."""


@dataclass(frozen=True, slots=True)
class Logs:
    """What is known, and of which partitions it is not."""

    asked: float
    """Monotonic time before their leaders were asked for what is seen."""
    agreed: Mapping[Partition, int]
    """Up to where both sides agreed last, of those whose leader on the source has changed since (KIP-101)."""
    seen: Mapping[Partition, Seen]
    unsure: Mapping[Partition, Unsure]


class Asking:
    """Both clusters, by clients that nobody else uses."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self.source = source
        self.destination = destination
        self._producer_id = producer_id

    def hurries(self, hurry: bool) -> None:
        """Whether who does not answer soon is left out of what is asked from now on."""
        for client in (self.source, self.destination):
            client.hurries(hurry)

    def views(self, wanted: Sequence[Expected]) -> Views:
        """Who leads these. RemoteFault when nobody of a cluster says so."""
        topics = {one.partition.topic for one in wanted}
        source, destination = (client.metadata(topics) for client in (self.source, self.destination))
        here = {one.partition: one.source_topic_id for one in wanted}
        there = {one.partition: one.destination_topic_id for one in wanted}
        return Views(_view(self.source, source, here), _view(self.destination, destination, there))

    def logs(self, wanted: Sequence[Asked]) -> Logs:
        """Where the logs of both sides end, and who wrote the destination's."""
        by_partition = {one.partition: one for one in wanted}
        unsure: dict[Partition, Unsure] = {}
        agreed = self._agreed(by_partition, unsure)
        rest = {p: one for p, one in by_partition.items() if p not in unsure}
        asked = time.monotonic()
        seen = self._settled(rest, unsure)
        return Logs(asked, agreed, seen, unsure)

    def _agreed(self, wanted: Mapping[Partition, Asked], unsure: dict[Partition, Unsure]) -> dict[Partition, int]:
        """Where the epoch that we know has ended in the new leader's log. ANYWHERE where it doesn't know that epoch: a
        cluster that was restored from a backup begins again with older ones."""
        changed = {p: r.vouched_epoch for p, r in wanted.items() if r.vouched_epoch != r.source_epoch}
        past = {p: epoch for p, epoch in changed.items() if epoch is not None and epoch < wanted[p].source_epoch}
        ends = epoch_ends(self.source, past, _led(past, lambda p: wanted[p].source_broker))
        unsure.update({p: Unsure(error, self.source.name) for p, error in ends.unknown.items()})
        return {p: ends.offsets.get(p, ANYWHERE) for p in changed if p not in unsure}

    def _settled(self, wanted: Mapping[Partition, Asked], unsure: dict[Partition, Unsure]) -> dict[Partition, Seen]:
        """Both logs at a moment when nobody appends (`unsettled`).

        A predecessor's last requests may still be on their way into the log (they cannot do harm, see decide.position).
        Partitions that come to no rest are unsure, and hold up no others.
        """
        found: dict[Partition, LogLook] = {}
        waiting, why, growing = list(wanted), dict[Partition, RemoteFault | str](), set[Partition]()
        for _ in range(_SETTLE_TRIES):
            seen = look(self.destination, _led(waiting, lambda p: wanted[p].destination_broker))
            why |= seen.unknown
            for p, error in seen.unknown.items():
                if isinstance(error, MissingPermission):
                    unsure[p] = Unsure(error, None)
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
        led = _led(found, lambda p: wanted[p].source_broker)
        ends = ends_of(self.source, led, Point.START, Point.LOG_END)
        why |= ends.unknown
        for p in wanted.keys() - ends.points.keys() - unsure.keys():
            # A leader that its replicas do not follow may be one by its own word only.
            misled = self.source.name if p in found else None if p in growing else self.destination.name
            words = why.get(p) or f"{p}: a leader does not say now where its log begins and ends"
            unsure[p] = Unsure(words if isinstance(words, Late) else str(words), misled)
        as_sent = self._ending_as_sent(wanted, {p: found[p] for p in ends.points})
        return {
            p: Seen(
                log_start=found[p].start,
                log_end=found[p].after,
                ours=self._ours(found[p].producers),
                source_start=start,
                source_end=end,
                ends_as_sent=p in as_sent,
                proved_end=wanted[p].proved_end,
            )
            for p, (start, end) in ends.points.items()
        }

    def _ending_as_sent(self, wanted: Mapping[Partition, Asked], logs: Mapping[Partition, LogLook]) -> set[Partition]:
        led: dict[int, dict[Partition, int]] = {}
        for p, log in logs.items():
            if wanted[p].unvouched and log.start < log.after:
                led.setdefault(wanted[p].destination_broker, {})[p] = log.after
        return ending_as_sent(self.destination, led) if led else set()

    def _ours(self, producers: Iterable[ProducerView]) -> Ours | None:
        """What the destination's leader remembers of this mirror."""
        for view in producers:
            if view.producer_id == self._producer_id:
                return Ours((view.last_sequence + 1) & SEQUENCE_MASK, view.coordinator_epoch, view.newest_ms)
        return None

    def close_after(self, question: Future[Views] | Future[Logs]) -> None:
        """Nobody waits for its answer."""
        question.add_done_callback(lambda _: self.close())

    def close(self) -> None:
        self.source.close()
        self.destination.close()


def _view(client: ClusterClient, cluster: ClusterView, expected: Mapping[Partition, str | None]) -> View:
    """Where one broker does not know a topic as it should, all are asked: it may be behind."""
    doubtful = {p.topic for p, id_ in expected.items() if id_ is not None and not as_expected(cluster, p, id_)}
    doubtful -= cluster.denied
    return View(cluster, heard_ids(client, doubtful) if doubtful else Heard({}, ()))


def as_expected(cluster: ClusterView, partition: Partition, topic_id: str) -> bool:
    """Whether a broker knows this partition, of the topic that it should be of."""
    topic = cluster.topics.get(partition.topic)
    return topic is not None and topic.id == topic_id and partition.index in topic.partitions


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

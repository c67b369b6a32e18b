"""Requests leaders and log ends from both clusters, for partitions that look for their resume offset.

Runs in a background thread on its own connections: a hung broker does not delay copying. Shares no state with the task.
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
    partition: Partition
    source_topic_id: str | None
    destination_topic_id: str | None


@dataclass(frozen=True, slots=True)
class View:
    cluster: ClusterView
    heard: Heard
    """All brokers' topic ids for topics that this broker reports as deleted or replaced."""

    def undecided(self, topic: str) -> bool:
        return bool(self.heard.silent) and topic in self.heard.ids


class Views(NamedTuple):
    source: View
    destination: View


class Asked(NamedTuple):
    partition: Partition
    source_broker: int
    source_epoch: int
    vouched_epoch: int | None
    destination_broker: int
    unvouched: bool
    """Nothing confirms the end of the destination's log, and this is the first check of it."""
    proved_end: int | None


class Unsure(NamedTuple):
    why: RemoteFault | str
    """`Late`: this partition moves to a slow round."""
    misled: ClusterName | None


@dataclass(frozen=True, slots=True)
class Logs:
    asked: float
    agreed: Mapping[Partition, int]
    """Offset up to which both sides agreed, where the source's leader changed since (KIP-101)."""
    seen: Mapping[Partition, Seen]
    unsure: Mapping[Partition, Unsure]


class Asking:
    def __init__(self, source: ClusterClient, destination: ClusterClient, producer_id: int) -> None:
        self.source = source
        self.destination = destination
        self._producer_id = producer_id

    def hurries(self, hurry: bool) -> None:
        for client in (self.source, self.destination):
            client.hurries(hurry)

    def views(self, wanted: Sequence[Expected]) -> Views:
        topics = {one.partition.topic for one in wanted}
        source, destination = (client.metadata(topics) for client in (self.source, self.destination))
        here = {one.partition: one.source_topic_id for one in wanted}
        there = {one.partition: one.destination_topic_id for one in wanted}
        return Views(_view(self.source, source, here), _view(self.destination, destination, there))

    def logs(self, wanted: Sequence[Asked]) -> Logs:
        by_partition = {one.partition: one for one in wanted}
        unsure: dict[Partition, Unsure] = {}
        agreed = self._agreed(by_partition, unsure)
        rest = {p: one for p, one in by_partition.items() if p not in unsure}
        asked = time.monotonic()
        seen = self._settled(rest, unsure)
        return Logs(asked, agreed, seen, unsure)

    def _agreed(self, wanted: Mapping[Partition, Asked], unsure: dict[Partition, Unsure]) -> dict[Partition, int]:
        """End of the known epoch in the new leader's log; ANYWHERE where that leader does not know the epoch.

        A cluster that was restored from a backup starts again with older epochs.
        """
        changed = {p: r.vouched_epoch for p, r in wanted.items() if r.vouched_epoch != r.source_epoch}
        past = {p: epoch for p, epoch in changed.items() if epoch is not None and epoch < wanted[p].source_epoch}
        ends = epoch_ends(self.source, past, _led(past, lambda p: wanted[p].source_broker))
        unsure.update({p: Unsure(error, self.source.name) for p, error in ends.unknown.items()})
        return {p: ends.offsets.get(p, ANYWHERE) for p in changed if p not in unsure}

    def _settled(self, wanted: Mapping[Partition, Asked], unsure: dict[Partition, Unsure]) -> dict[Partition, Seen]:
        """Both logs at a moment when nobody appends (`explain_unstable_end`).

        A predecessor's last requests may still arrive; they cannot do harm (`decide.position`). A log that keeps moving
        becomes unknown, and does not hold up the others.
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
        # The source's end is read last. It only grows, so a position beyond it never existed.
        led = _led(found, lambda p: wanted[p].source_broker)
        ends = ends_of(self.source, led, Point.START, Point.LOG_END)
        why |= ends.unknown
        for p in wanted.keys() - ends.points.keys() - unsure.keys():
            # A leader without followers may be an outdated one.
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
        for view in producers:
            if view.producer_id == self._producer_id:
                return Ours((view.last_sequence + 1) & SEQUENCE_MASK, view.coordinator_epoch, view.newest_ms)
        return None

    def close_after(self, question: Future[Views] | Future[Logs]) -> None:
        question.add_done_callback(lambda _: self.close())

    def close(self) -> None:
        self.source.close()
        self.destination.close()


def _view(client: ClusterClient, cluster: ClusterView, expected: Mapping[Partition, str | None]) -> View:
    """Requests topic ids from all brokers where one broker's metadata is unexpected: that broker may be
    stale."""
    doubtful = {p.topic for p, id_ in expected.items() if id_ is not None and not as_expected(cluster, p, id_)}
    doubtful -= cluster.denied
    return View(cluster, heard_ids(client, doubtful) if doubtful else Heard({}, ()))


def as_expected(cluster: ClusterView, partition: Partition, topic_id: str) -> bool:
    topic = cluster.topics.get(partition.topic)
    return topic is not None and topic.id == topic_id and partition.index in topic.partitions


def _led(partitions: Iterable[Partition], broker: Callable[[Partition], int]) -> dict[int, list[Partition]]:
    found: dict[int, list[Partition]] = {}
    for partition in sorted(partitions):
        found.setdefault(broker(partition), []).append(partition)
    return found


def unsettled(cluster: ClusterName, partition: Partition, before: int, after: int, replicated: int | None) -> str:
    """Why a snapshot of the destination's log is inconclusive; "" when it is conclusive.

    Conclusive: the log end is the same before and after the producer state was read, and all in-sync replicas have it.
    What only the leader has, it may lose (KIP-966).
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

"""The driver's lookout: looks at the source every second, in a thread of its own, for the day on which it is silent.

What it sees is kept in the state topic, at a bounded rate: see `Sighting`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from mirror_core.dataplane.wholeness import Wholeness
from mirror_core.decide.filters import topic_filter
from mirror_core.decide.view import is_healthy
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.offsets import Point, describe_producers, led_offsets
from mirror_core.kafka.transactions import OpenTransaction, open_transactions
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError, RemoteFault, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.sighting import OVER, Seen, Sighting, TopicSeen, TransactionPart, TransactionSeen
from mirror_core.state.link import Link

_log = logger(__name__)

EVERY_S: Final = 1.0
BYTES_PER_S: Final = 32 << 10
"""Of sightings, into the state topic: a mirror of 50,000 partitions is looked at every quarter of a minute."""
MOST_TRANSACTIONS: Final = 200
"""That are named in a sighting; of more, the newest are."""
_ALONE: Final = 10
"""For so many times as long as it took to ask for transactions they are left alone then, if it took longer than a look
may: each broker tells all producers of each partition, and sources with thousands of them have more to do than that."""
_LISTING_PAUSE: Final = 10
"""Times as long as a listing of all topics took, until the next one: a tenth of a processor, and of the link, at most.
Measured: the answer about 50,000 partitions is 2 to 4 MB, and takes 0.1 to 0.25 s of processor time to read."""
_MAX_LISTING_PAUSE_S: Final = 30.0
"""The planner lists all topics once an epoch, too."""
_MOST_ALONE_S: Final = 300.0
"""It may have been this machine that slept."""
_MOST_REMEMBERED: Final = 2_000
"""Of those that are over and not copied yet."""

Key = tuple[str, int, int]
"""Id, producer id, when it began: an id has one transaction after the other."""


@dataclass(slots=True)
class Memory:
    """What was seen so far; what cannot be seen now stays as it was. No client, no clock."""

    mirror: MirrorName
    seen: dict[Partition, Seen]
    leaderless: frozenset[Partition] = frozenset()
    transactions: dict[Key, TransactionSeen] | None = None
    """None: never asked."""
    transactions_ms: int | None = None
    at_ms: int = 0
    wholeness: Wholeness = field(default_factory=Wholeness)
    recorded: Mapping[Partition, PartitionStatus] = field(default_factory=dict)
    unrecorded: frozenset[Partition] = frozenset()
    """Partitions that match the mirror's filters, and that no plan has recorded yet."""
    ids: dict[str, str] = field(default_factory=dict)
    """Topic ids on the source."""
    starts: dict[Partition, Offset] = field(default_factory=dict)
    listed_ms: int | None = None

    def topics(self, found: Mapping[str, TopicView], listed_ms: int | None) -> None:
        """Topics of the source as one answer described them. `listed_ms`: when it has listed all that match."""
        for name, view in found.items():
            first = self.recorded.get(Partition(name, 0))
            before = self.ids.get(name) or (first.source_topic_id if first else view.id)
            if before != view.id:  # what was seen was another topic's
                self.seen = {p: seen for p, seen in self.seen.items() if p.topic != name}
                self.starts = {p: start for p, start in self.starts.items() if p.topic != name}
            self.ids[name] = view.id
        new = {
            p
            for name, view in found.items()
            for index in view.partitions
            if (p := Partition(name, index)) not in self.recorded
        }
        if listed_ms is None:
            self.unrecorded |= new
        else:
            self.unrecorded, self.listed_ms = frozenset(new), listed_ms

    def known(self) -> frozenset[Partition]:
        """Recorded or not."""
        return self.unrecorded | self.recorded.keys()

    def uncopied(self) -> frozenset[Partition]:
        """Partitions of which nothing, or nothing more, is copied: their whole log may be lost."""
        return self.unrecorded | {p for p, s in self.recorded.items() if not is_healthy(s) or not self._is_copy(p, s)}

    def _is_copy(self, partition: Partition, status: PartitionStatus) -> bool:
        """Whether the destination may have a copy of the log that the source has now."""
        return bool(status.destination_topic_id) and self._id(partition.topic, status) in ("", status.source_topic_id)

    def _id(self, topic: str, status: PartitionStatus | None) -> str:
        found = self.ids.get(topic, "")
        return "" if status is not None and found == status.source_topic_id else found

    def ends(self, at_ms: int, ends: Mapping[Partition, Offset], leaderless: Collection[Partition]) -> None:
        """The source's ends, asked for at this time."""
        self.at_ms = at_ms
        self.leaderless = frozenset(leaderless)
        found = {p: Seen(end, at_ms) for p, end in ends.items()}
        self.seen |= found
        copies = {p for p, status in self.recorded.items() if self._is_copy(p, status)}
        self.wholeness.keep(copies)
        self.wholeness.seen({p: look for p, look in found.items() if p in copies})

    def keep(self, recorded: Mapping[Partition, PartitionStatus]) -> None:
        """What the mirror has recorded now. Forget what is neither that nor on the source."""
        self.recorded = recorded
        self.unrecorded -= recorded.keys()

    def forget_others(self) -> None:
        """What is not known any more: neither recorded, nor on the source."""
        known, uncopied = self.known(), self.uncopied()
        names = {p.topic for p in known}
        self.seen = {p: seen for p, seen in self.seen.items() if p in known}
        self.starts = {p: start for p, start in self.starts.items() if p in uncopied}
        self.ids = {topic: id_ for topic, id_ in self.ids.items() if topic in names}

    def open(self, at_ms: int, found: Mapping[Key, TransactionSeen]) -> None:
        """Transactions that were open at this time; those that were so before and are not now are over."""
        before = self.transactions or {}
        over = {key: t if t.state == OVER else replace(t, state=OVER) for key, t in before.items() if key not in found}
        # A transaction that is being ended is told without the partitions that have its marker already.
        newest = sorted(over, key=lambda key: key[2])[-_MOST_REMEMBERED:]
        self.transactions = {key: over[key] for key in newest}
        self.transactions |= {key: _joined(before.get(key), t) for key, t in found.items()}
        self.transactions_ms = at_ms

    def bound(self, ends: Mapping[Partition, Offset]) -> None:
        """Ends seen after `open`: what is over lies below them."""
        self.transactions = {
            key: replace(t, parts=tuple(_below(part, ends) for part in t.parts)) if t.state == OVER else t
            for key, t in (self.transactions or {}).items()
        }

    def copied(self, positions: Mapping[Partition, Offset]) -> None:
        """Forget those that are over and wholly on the destination."""
        self.transactions = {
            key: t
            for key, t in (self.transactions or {}).items()
            if any(part.upto is None or positions.get(part.partition, -1) < part.upto for part in t.parts)
        }

    def over(self) -> frozenset[Partition]:
        """Partitions of transactions that are over and not yet known to be copied."""
        told = (self.transactions or {}).values()
        return frozenset(part.partition for t in told if t.state == OVER for part in t.parts)

    def sighting(self) -> Sighting:
        told = sorted((self.transactions or {}).items(), key=lambda item: item[0][2])
        return Sighting(
            mirror=self.mirror,
            at_ms=self.at_ms,
            topics=tuple(self._topics()),
            listed_ms=self.listed_ms,
            transactions=tuple(t for _, t in told[-MOST_TRANSACTIONS:]),
            transactions_ms=self.transactions_ms,
            unnamed=max(0, len(told) - MOST_TRANSACTIONS),
        )

    def _topics(self) -> Iterable[TopicSeen]:
        indexes: dict[str, list[int]] = {}
        for partition in self.seen.keys() | self.leaderless | self.unrecorded:
            indexes.setdefault(partition.topic, []).append(partition.index)
        leaderless: dict[str, list[int]] = {}
        for partition in sorted(self.leaderless):
            leaderless.setdefault(partition.topic, []).append(partition.index)
        whole: dict[str, list[tuple[int, int]]] = {}
        for partition, at_ms in sorted(self.wholeness.since().items()):
            whole.setdefault(partition.topic, []).append((partition.index, self.at_ms - at_ms))
        for topic, known in sorted(indexes.items()):
            row = [self.seen.get(Partition(topic, index)) for index in range(max(known) + 1)]
            ago = tuple(max(0, self.at_ms - one.at_ms) if one else 0 for one in row)
            status = self.recorded.get(Partition(topic, 0))
            starts = ((index, self.starts.get(Partition(topic, index))) for index in sorted(known))
            yield TopicSeen(
                topic=topic,
                id=self._id(topic, status),
                starts=tuple((index, start) for index, start in starts if start is not None),
                ends=tuple(one.end if one else None for one in row),
                ago_ms=ago if any(ago) else (),
                leaderless=tuple(leaderless.get(topic, ())),
                whole_ago_ms=tuple(whole.get(topic, ())),
            )


class Lookout:
    """Looks at one mirror's source while entered. `before`: the newest sighting of an earlier process, if any."""

    def __init__(self, link: Link, before: Sighting | None) -> None:
        self._link = link
        self._memory = _remembered(before) if before else Memory(link.mirror.name, {})
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self._recorded: Mapping[Partition, PartitionStatus] = {}
        self._alone_until = 0.0
        self._list_from = 0.0
        self._new: Sighting | None = None
        self.newest = before
        """The newest sighting, taken up by `news` or not."""
        self.unreached: Mapping[Partition, int] = {}
        """Partitions that lacked something of what was seen then, and since when."""

    def watch(self, recorded: Mapping[Partition, PartitionStatus]) -> None:
        """What is recorded of the mirror from now on, FAILED partitions too. What else matches its filters is found."""
        self._recorded = dict(recorded)

    def news(self) -> Sighting | None:
        """A sighting that nobody has taken up yet, to be recorded."""
        with self._lock:
            found, self._new = self._new, None
            return found

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """It ends by itself when a dead source has used up the time limit; nobody waits for that."""
        self._stop.set()

    def look(self, source: ClusterClient, destination: ClusterClient) -> Sighting:
        """One look. Raises when no broker of the source answers."""
        memory = self._memory
        memory.keep(self._recorded)
        described = self._describe(source)
        memory.forget_others()
        wanted = memory.known()
        asked_ms = now_ms()
        opened = self._opened(source, {p.topic for p in wanted})
        if opened is not None:
            memory.open(asked_ms, opened)
        asked_ms = now_ms()
        known = led_offsets(source, wanted, Point.HIGH_WATERMARK, led=described)
        memory.ends(asked_ms, known.offsets, known.leaderless)
        self._ask_starts(source, described)
        if opened is not None:
            memory.bound(known.offsets)
        if asked := memory.over() | memory.wholeness.behind():
            try:
                positions = led_offsets(destination, asked, Point.HIGH_WATERMARK).offsets
            except MirrorError as error:  # what was seen of the source counts all the same
                _log.debug("positions could not be looked at: %s", error)
            else:
                memory.copied(positions)
                memory.wholeness.at(positions)
        found, self.unreached = memory.sighting(), memory.wholeness.unreached()
        with self._lock:
            self._new = self.newest = found
        return found

    def _describe(self, source: ClusterClient) -> Mapping[str, TopicView]:
        """Topics of the mirror, and others that match its filters: by a listing of all, or by their names alone while a
        listing, which takes long where there are many, is left alone."""
        began, asked_ms = time.monotonic(), now_ms()
        if began >= self._list_from:
            try:
                found = source.metadata().topics
            except Unreachable:
                raise
            except RemoteFault as error:
                _log.debug("topics could not be listed: %s", error)
            else:
                now = time.monotonic()
                self._list_from = now + min(_LISTING_PAUSE * (now - began), _MAX_LISTING_PAUSE_S)
                names = {p.topic for p in self._recorded}
                chosen = topic_filter(self._link.mirror)
                mine = {n: view for n, view in found.items() if n in names or (n in chosen and not view.internal)}
                self._memory.topics(mine, asked_ms)
                return mine
        found = source.metadata({p.topic for p in self._memory.known()}).topics
        self._memory.topics(found, None)
        return found

    def _ask_starts(self, source: ClusterClient, described: Mapping[str, TopicView]) -> None:
        """Where logs begin of which the destination has nothing: all of them is lost if the source dies now."""
        if not (uncopied := self._memory.uncopied()):
            return
        try:
            self._memory.starts |= led_offsets(source, uncopied, Point.START, led=described).offsets
        except MirrorError as error:  # the ends that were seen count all the same
            _log.debug("log starts could not be looked at: %s", error)

    def _opened(self, source: ClusterClient, topics: Collection[str]) -> dict[Key, TransactionSeen] | None:
        """Open transactions; None when they cannot be asked for, or are left alone now: those seen last stay."""
        began = time.monotonic()
        if began < self._alone_until:
            return None
        found, now = _open(source, topics), time.monotonic()
        if found is not None and now - began > EVERY_S:
            self._alone_until = now + min(_ALONE * (now - began), _MOST_ALONE_S)
        return found

    def _run(self) -> None:
        trouble = ""
        with (
            ClusterClient(self._link.source, timeout_s=LIMITS.watched_side_s) as source,
            ClusterClient(self._link.destination, timeout_s=LIMITS.watched_side_s) as destination,
        ):
            pause = 0.0
            while not self._stop.wait(pause):
                began, pause = time.monotonic(), EVERY_S
                try:
                    pause = _pause_s(self.look(source, destination))
                    trouble = ""
                except MirrorError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        _log.info("the source could not be looked at: %s", error, mirror=self._link.mirror.name)
                pause = max(0.0, pause - (time.monotonic() - began))


def _remembered(before: Sighting) -> Memory:
    """What an earlier process has seen."""
    return Memory(
        before.mirror,
        dict(before.seen()),
        wholeness=Wholeness(dict(before.whole())),
        unrecorded=frozenset(before.partitions()),  # until it is known what is recorded
        ids=before.ids(),
        starts=dict(before.starts()),
        listed_ms=before.listed_ms,
    )


def _pause_s(sighting: Sighting) -> float:
    return max(EVERY_S, len(msgspec.json.encode(sighting)) / BYTES_PER_S)


def _open(source: ClusterClient, topics: Collection[str]) -> dict[Key, TransactionSeen] | None:
    """Open transactions with their first offsets; None when they cannot be asked for."""
    try:
        found = open_transactions(source, topics)
        firsts = _firsts(source, {p for t in found for p in t.partitions})
    except MirrorError as error:
        _log.debug("transactions could not be looked at: %s", error)
        return None
    return {(t.id, t.producer_id, t.started_ms): _seen(t, firsts) for t in found}


def _firsts(source: ClusterClient, partitions: Collection[Partition]) -> dict[tuple[int, Partition], Offset]:
    """First offset of the open transaction of a producer id, by partition. Without those that cannot be asked for."""
    led = (
        {p for broker, mine in source.leaders(partitions).items() if broker >= 0 for p in mine} if partitions else set()
    )
    return {
        (view.producer_id, partition): Offset(view.open_transaction_start)
        for partition, views in (describe_producers(source, led) if led else {}).items()
        for view in views
        if view.open_transaction_start >= 0
    }


def _seen(found: OpenTransaction, firsts: Mapping[tuple[int, Partition], Offset]) -> TransactionSeen:
    return TransactionSeen(
        id=found.id,
        producer_id=found.producer_id,
        state=found.state,
        parts=tuple(
            TransactionPart(partition=p, first=firsts.get((found.producer_id, p))) for p in sorted(found.partitions)
        ),
    )


def _joined(before: TransactionSeen | None, now: TransactionSeen) -> TransactionSeen:
    parts = {part.partition: part for part in before.parts} if before else {}
    for part in now.parts:
        if part.first is not None or part.partition not in parts:
            parts[part.partition] = part
    return replace(now, parts=tuple(parts[p] for p in sorted(parts)))


def _below(part: TransactionPart, ends: Mapping[Partition, Offset]) -> TransactionPart:
    end = ends.get(part.partition)
    return part if part.upto is not None or end is None else replace(part, upto=end)

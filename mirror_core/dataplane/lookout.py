"""Observes the source each second, in its own thread, for the day on which it does not respond.

Observations are stored in the state topic, at a bounded rate.
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
"""A mirror of 50,000 partitions is stored every quarter of a minute."""
MOST_TRANSACTIONS: Final = 200
_ALONE: Final = 10
"""Pause after a slow request for transactions, times its duration: each broker lists all producers of
each partition."""
_LISTING_PAUSE: Final = 10
"""Times the duration of a listing: at most a tenth of a processor. Measured: 50,000 partitions take 2
to 4 MB, and 0.1 to 0.25 s to parse."""
_MAX_LISTING_PAUSE_S: Final = 30.0
_MOST_ALONE_S: Final = 300.0
_MOST_REMEMBERED: Final = 2_000

Key = tuple[str, int, int]
"""Id, producer id, start: an id has one transaction at a time."""


@dataclass(slots=True)
class Memory:
    """What was observed so far; what cannot be observed now stays. No client, no clock."""

    mirror: MirrorName
    seen: dict[Partition, Seen]
    leaderless: frozenset[Partition] = frozenset()
    transactions: dict[Key, TransactionSeen] | None = None
    transactions_ms: int | None = None
    at_ms: int = 0
    wholeness: Wholeness = field(default_factory=Wholeness)
    recorded: Mapping[Partition, PartitionStatus] = field(default_factory=dict)
    unrecorded: frozenset[Partition] = frozenset()
    ids: dict[str, str] = field(default_factory=dict)
    starts: dict[Partition, Offset] = field(default_factory=dict)
    listed_ms: int | None = None

    def topics(self, found: Mapping[str, TopicView], listed_ms: int | None) -> None:
        """`listed_ms`: when all matching topics were listed; None: only some were described."""
        for name, view in found.items():
            first = self.recorded.get(Partition(name, 0))
            before = self.ids.get(name) or (first.source_topic_id if first else view.id)
            if before != view.id:  # another topic's ends
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
        return self.unrecorded | self.recorded.keys()

    def uncopied(self) -> frozenset[Partition]:
        """Partitions that are not (or no longer) copied: their whole log may be lost."""
        return self.unrecorded | {p for p, s in self.recorded.items() if not is_healthy(s) or not self._is_copy(p, s)}

    def _is_copy(self, partition: Partition, status: PartitionStatus) -> bool:
        """Whether the destination may hold the source's current log."""
        return bool(status.destination_topic_id) and self._id(partition.topic, status) in ("", status.source_topic_id)

    def _id(self, topic: str, status: PartitionStatus | None) -> str:
        found = self.ids.get(topic, "")
        return "" if status is not None and found == status.source_topic_id else found

    def ends(self, at_ms: int, ends: Mapping[Partition, Offset], leaderless: Collection[Partition]) -> None:
        self.at_ms = at_ms
        self.leaderless = frozenset(leaderless)
        found = {p: Seen(end, at_ms) for p, end in ends.items()}
        self.seen |= found
        copies = {p for p, status in self.recorded.items() if self._is_copy(p, status)}
        self.wholeness.keep(copies)
        self.wholeness.seen({p: look for p, look in found.items() if p in copies})

    def keep(self, recorded: Mapping[Partition, PartitionStatus]) -> None:
        self.recorded = recorded
        self.unrecorded -= recorded.keys()

    def forget_others(self) -> None:
        known, uncopied = self.known(), self.uncopied()
        names = {p.topic for p in known}
        self.seen = {p: seen for p, seen in self.seen.items() if p in known}
        self.starts = {p: start for p, start in self.starts.items() if p in uncopied}
        self.ids = {topic: id_ for topic, id_ in self.ids.items() if topic in names}

    def open(self, at_ms: int, found: Mapping[Key, TransactionSeen]) -> None:
        """Transactions open at this time; earlier ones that are missing have ended."""
        before = self.transactions or {}
        over = {key: t if t.state == OVER else replace(t, state=OVER) for key, t in before.items() if key not in found}
        # An ending transaction is described without partitions that have its marker.
        newest = sorted(over, key=lambda key: key[2])[-_MOST_REMEMBERED:]
        self.transactions = {key: over[key] for key in newest}
        self.transactions |= {key: _joined(before.get(key), t) for key, t in found.items()}
        self.transactions_ms = at_ms

    def bound(self, ends: Mapping[Partition, Offset]) -> None:
        """Ends observed after the transactions: ended ones lie below."""
        self.transactions = {
            key: replace(t, parts=tuple(_below(part, ends) for part in t.parts)) if t.state == OVER else t
            for key, t in (self.transactions or {}).items()
        }

    def copied(self, positions: Mapping[Partition, Offset]) -> None:
        self.transactions = {
            key: t
            for key, t in (self.transactions or {}).items()
            if any(part.upto is None or positions.get(part.partition, -1) < part.upto for part in t.parts)
        }

    def over(self) -> frozenset[Partition]:
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
        self.unreached: Mapping[Partition, int] = {}

    def watch(self, recorded: Mapping[Partition, PartitionStatus]) -> None:
        self._recorded = dict(recorded)

    def news(self) -> Sighting | None:
        with self._lock:
            found, self._new = self._new, None
            return found

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait: a dead source may use up its timeout."""
        self._stop.set()

    def look(self, source: ClusterClient, destination: ClusterClient) -> Sighting:
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
            except MirrorError as error:  # the observation of the source counts
                _log.debug("positions could not be looked at: %s", error)
            else:
                memory.copied(positions)
                memory.wholeness.at(positions)
        found, self.unreached = memory.sighting(), memory.wholeness.unreached()
        with self._lock:
            self._new = self.newest = found
        return found

    def _describe(self, source: ClusterClient) -> Mapping[str, TopicView]:
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
        """Of logs that the destination lacks: all of them is lost if the source dies now."""
        if not (uncopied := self._memory.uncopied()):
            return
        try:
            self._memory.starts |= led_offsets(source, uncopied, Point.START, led=described).offsets
        except MirrorError as error:  # the observed ends count
            _log.debug("log starts could not be looked at: %s", error)

    def _opened(self, source: ClusterClient, topics: Collection[str]) -> dict[Key, TransactionSeen] | None:
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
    return Memory(
        before.mirror,
        dict(before.seen()),
        wholeness=Wholeness(dict(before.whole())),
        unrecorded=frozenset(before.partitions()),  # until the record is read
        ids=before.ids(),
        starts=dict(before.starts()),
        listed_ms=before.listed_ms,
    )


def _pause_s(sighting: Sighting) -> float:
    return max(EVERY_S, len(msgspec.json.encode(sighting)) / BYTES_PER_S)


def _open(source: ClusterClient, topics: Collection[str]) -> dict[Key, TransactionSeen] | None:
    try:
        found = open_transactions(source, topics)
        firsts = _firsts(source, {p for t in found for p in t.partitions})
    except MirrorError as error:
        _log.debug("transactions could not be looked at: %s", error)
        return None
    return {(t.id, t.producer_id, t.started_ms): _seen(t, firsts) for t in found}


def _firsts(source: ClusterClient, partitions: Collection[Partition]) -> dict[tuple[int, Partition], Offset]:
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

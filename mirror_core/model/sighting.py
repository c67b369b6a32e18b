from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirror_core.model.names import MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True)
class Seen:
    end: Offset
    """High watermark: below it lie all records acknowledged before the observation."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    """Partitions by number: a mirror may have 50,000 of them."""

    topic: str
    ends: tuple[int | None, ...]
    id: str = ""
    starts: tuple[tuple[int, int], ...] = ()
    """Log starts of partitions that are not copied (any more)."""
    ago_ms: tuple[int, ...] = ()
    """Age at the observation. Empty: all are new."""
    leaderless: tuple[int, ...] = ()
    whole_ago_ms: tuple[tuple[int, int], ...] = ()
    """Age of the last end that was completely copied, for lagging partitions. Not listed: never complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPart:
    partition: Partition
    first: Offset | None
    upto: Offset | None = None
    """The source's end when it was first seen over. None: still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSeen:
    """Open, or over and perhaps not completely copied."""

    id: str
    producer_id: int
    state: str
    """Kafka's, or `Over`."""
    parts: tuple[TransactionPart, ...]


OVER = "Over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    mirror: MirrorName
    at_ms: int
    topics: tuple[TopicSeen, ...] = ()
    """Recorded topics, and others that match the filters."""
    listed_ms: int | None = None
    """Wall clock before the last topic listing. Known topics show new partitions at once."""
    transactions: tuple[TransactionSeen, ...] = ()
    transactions_ms: int | None = None
    unnamed: int = 0

    def seen(self) -> Iterator[tuple[Partition, Seen]]:
        for row in self.topics:
            for index, end in enumerate(row.ends):
                if end is not None:
                    ago = row.ago_ms[index] if row.ago_ms else 0
                    yield Partition(row.topic, index), Seen(Offset(end), self.at_ms - ago)

    def partitions(self) -> Iterator[Partition]:
        for row in self.topics:
            yield from (Partition(row.topic, index) for index in range(len(row.ends)))

    def starts(self) -> Iterator[tuple[Partition, Offset]]:
        for row in self.topics:
            yield from ((Partition(row.topic, index), Offset(start)) for index, start in row.starts)

    def ids(self) -> dict[str, str]:
        return {row.topic: row.id for row in self.topics if row.id}

    def whole(self) -> Iterator[tuple[Partition, int]]:
        """By lagging partition: wall clock."""
        for row in self.topics:
            for index, ago in row.whole_ago_ms:
                yield Partition(row.topic, index), self.at_ms - ago

    def leaderless(self) -> Iterator[Partition]:
        for row in self.topics:
            for index in row.leaderless:
                yield Partition(row.topic, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    partition: int
    """One for each source broker at the topic's creation."""
    number: int
    """Counts from 1 in each driver process."""
    at_ms: int
    mirror: str
    driver: str

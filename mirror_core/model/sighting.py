"""What was seen of a source while it still answered: for the day on which it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirror_core.model.names import MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True)
class Seen:
    """The end of one partition of the source, at a look."""

    end: Offset
    """High watermark: below it is all that was acknowledged (by acks=all) before the look began."""
    at_ms: int
    """Wall clock just before the source was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    """The partitions of one topic, by number: short names in the record, since a mirror may have 50,000 of them."""

    topic: str
    ends: tuple[int | None, ...]
    """One for each partition that the topic has on the source. None: never seen."""
    id: str = ""
    """Topic id on the source where it is not the one that the mirror has recorded; empty: it is."""
    starts: tuple[tuple[int, int], ...] = ()
    """First offsets of partitions of which nothing, or nothing more, is copied."""
    ago_ms: tuple[int, ...] = ()
    """How long before the sighting each was seen; empty when all were seen then."""
    leaderless: tuple[int, ...] = ()
    """Nobody led these."""
    whole_ago_ms: tuple[tuple[int, int], ...] = ()
    """Of partitions that were not copied up to their end: how long before the sighting they had been copied up to what
    the end was then. One that is behind and is not listed was never seen so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPart:
    """What a transaction has in one partition."""

    partition: Partition
    first: Offset | None
    """Its first offset; None: it has joined the partition and written nothing yet, or that could not be asked."""
    upto: Offset | None = None
    """All of it lies below: the source's end when it was first seen to be over. None: it was open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSeen:
    """A transaction that was open at the last look, or that was over then and perhaps not copied as a whole."""

    id: str
    producer_id: int
    state: str
    """Kafka's word: Ongoing, PrepareCommit, PrepareAbort... `Over` when it is not among the open ones any more."""
    parts: tuple[TransactionPart, ...]


OVER = "Over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The newest look of a mirror's data plane at its source."""

    mirror: MirrorName
    at_ms: int
    """Wall clock just before the source was asked."""
    topics: tuple[TopicSeen, ...] = ()
    """Recorded ones, and others that match the mirror's filters."""
    listed_ms: int | None = None
    """Wall clock just before all topics of the source were listed; None: never. New partitions of known topics are seen
    at each look."""
    transactions: tuple[TransactionSeen, ...] = ()
    transactions_ms: int | None = None
    """When transactions were asked for, and the answer was whole; None: never."""
    unnamed: int = 0
    """Transactions that are not listed, since there are too many."""

    def seen(self) -> Iterator[tuple[Partition, Seen]]:
        """Each partition that was ever seen."""
        for row in self.topics:
            for index, end in enumerate(row.ends):
                if end is not None:
                    ago = row.ago_ms[index] if row.ago_ms else 0
                    yield Partition(row.topic, index), Seen(Offset(end), self.at_ms - ago)

    def partitions(self) -> Iterator[Partition]:
        """Each partition that the source was known to have."""
        for row in self.topics:
            yield from (Partition(row.topic, index) for index in range(len(row.ends)))

    def starts(self) -> Iterator[tuple[Partition, Offset]]:
        """First offsets that were asked for."""
        for row in self.topics:
            yield from ((Partition(row.topic, index), Offset(start)) for index, start in row.starts)

    def ids(self) -> dict[str, str]:
        """By topic: ids on the source that were not the recorded ones."""
        return {row.topic: row.id for row in self.topics if row.id}

    def whole(self) -> Iterator[tuple[Partition, int]]:
        """Wall clock of the look whose ends had been copied, of partitions that were behind the newest one."""
        for row in self.topics:
            for index, ago in row.whole_ago_ms:
                yield Partition(row.topic, index), self.at_ms - ago

    def leaderless(self) -> Iterator[Partition]:
        """Partitions that nobody led."""
        for row in self.topics:
            for index in row.leaderless:
                yield Partition(row.topic, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One record of the heartbeats' topic."""

    partition: int
    """One for each broker that the source had when the topic was created."""
    number: int
    """Grows by one with each; from 1 on in each driver's life."""
    at_ms: int
    """Wall clock of the driver that wrote it."""
    mirror: str
    """Whose data plane wrote it: the mirror's, or on the way home its reverse's."""
    driver: str
    """Which process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mirror_core.model.mirror import NameFilters
from mirror_core.model.names import MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True)
class ObservedEnd:
    end: Offset
    """High watermark: below it lie all records acknowledged before the observation."""
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTopic:
    """Partitions by number: a mirror may have 50,000 of them."""

    topic: str
    ends: tuple[int | None, ...]
    id: str = ""
    starts: tuple[tuple[int, int], ...] = ()
    """Log starts of partitions that are not copied (any more)."""
    ages_ms: tuple[int, ...] = ()
    """Age at the observation. Empty: all are new."""
    offline: tuple[int, ...] = ()
    rewritten: tuple[tuple[int, int, int], ...] = ()
    """Leader epoch under which the copy last agreed, and the first offset at which the source has other records."""
    end_epochs: tuple[tuple[int, int], ...] = ()
    """Leader epoch under which an end was told, where the copy last agreed under another."""
    recovery_points: tuple[tuple[int, int, int], ...] = ()
    """Age of the last end that was completely copied, and that end, for lagging partitions. Not listed: never
    complete."""
    reported: tuple[tuple[int, int | None], ...] | None = None
    """Next offset up to which tasks reported without a hole what they copied, where it is not the end. None of a
    partition, or at all: unknown.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTransaction:
    partition: Partition
    first: Offset | None
    end: Offset | None = None
    """When first seen over. None: still open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTransaction:
    """Open, or over and perhaps partly copied."""

    id: str
    producer_id: int
    state: str
    """Kafka's, or `Over`."""
    parts: tuple[PartitionTransaction, ...]


TRANSACTION_OVER = "Over"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceObservation:
    mirror: MirrorName
    at_ms: int
    topics: tuple[ObservedTopic, ...] = ()
    """Recorded ones, and others that match the filters."""
    listed_ms: int | None = None
    """Before the last topic listing. Known topics show new partitions at once."""
    listed_by: NameFilters | None = None
    """Filters of that listing. None: not recorded."""
    transactions: tuple[ObservedTransaction, ...] = ()
    transactions_ms: int | None = None
    unlisted_transactions: int = 0
    offsets_per_s: float | None = None
    """From applications, to all partitions, over the last minute that was observed. None: unknown."""
    refused_ms: int | None = None
    """Since when each broker has refused connections, whenever the data plane looked. None: not seen."""
    refused_generation: int | None = None
    """Generation of the lease whose owner saw it: a later owner does not know what happened in between."""

    def get_ends(self) -> Iterator[tuple[Partition, ObservedEnd]]:
        for topic in self.topics:
            for index, end in enumerate(topic.ends):
                if end is not None:
                    age_ms = topic.ages_ms[index] if topic.ages_ms else 0
                    yield Partition(topic.topic, index), ObservedEnd(Offset(end), self.at_ms - age_ms)

    def get_partitions(self) -> Iterator[Partition]:
        for topic in self.topics:
            yield from (Partition(topic.topic, index) for index in range(len(topic.ends)))

    def get_starts(self) -> Iterator[tuple[Partition, Offset]]:
        """Where uncopied records begin."""
        rewritten = {p: offset for p, _, offset in self.get_rewritten()}
        for topic in self.topics:
            for index, start in topic.starts:
                if (partition := Partition(topic.topic, index)) not in rewritten:
                    yield partition, Offset(start)
        yield from rewritten.items()

    def get_rewritten(self) -> Iterator[tuple[Partition, int, Offset]]:
        for topic in self.topics:
            for index, agreed_epoch, offset in topic.rewritten:
                yield Partition(topic.topic, index), agreed_epoch, Offset(offset)

    def get_end_epochs(self) -> Iterator[tuple[Partition, int]]:
        for topic in self.topics:
            yield from ((Partition(topic.topic, index), epoch) for index, epoch in topic.end_epochs)

    def get_new_topic_ids(self) -> dict[str, str]:
        return {topic.topic: topic.id for topic in self.topics if topic.id}

    def get_reported_ends(self) -> Iterator[tuple[Partition, int]]:
        for topic in self.topics:
            if topic.reported is not None:
                ends = dict(enumerate(topic.ends)) | dict(topic.reported)
                yield from ((Partition(topic.topic, index), end) for index, end in ends.items() if end is not None)

    def with_reported_ends(self, ends: Mapping[Partition, int]) -> SourceObservation:
        return replace(
            self,
            topics=tuple(
                replace(
                    topic,
                    reported=tuple(
                        (index, reported)
                        for index, end in enumerate(topic.ends)
                        if (reported := ends.get(Partition(topic.topic, index))) != end or end is None
                    ),
                )
                for topic in self.topics
            ),
        )

    def get_recovery_points(self) -> Iterator[tuple[Partition, ObservedEnd]]:
        """The newest ends that were completely copied, of lagging partitions."""
        for topic in self.topics:
            for index, age_ms, end in topic.recovery_points:
                yield Partition(topic.topic, index), ObservedEnd(Offset(end), self.at_ms - age_ms)

    def list_once_complete(self) -> Iterator[Partition]:
        """Partitions of which a complete copy is known, now or earlier, whatever has become of it since."""
        yield from (partition for partition, _ in (*self.get_recovery_points(), *self.get_complete()))

    def get_complete(self) -> Iterator[tuple[Partition, ObservedEnd]]:
        """Copied to the observed end."""
        ends = dict(self.get_ends())
        yield from ((p, ends[p]) for p, reported in self.get_reported_ends() if p in ends and reported >= ends[p].end)

    def list_complete_times(self, positions: Mapping[Partition, Offset]) -> dict[Partition, int]:
        """Lagging partitions: wall clock. Without copies that have lost, by now, what they had then."""
        return {
            partition: point.at_ms
            for partition, point in self.get_recovery_points()
            if (position := positions.get(partition)) is not None and position >= point.end
        }

    def get_offline_partitions(self) -> Iterator[Partition]:
        for topic in self.topics:
            for index in topic.offline:
                yield Partition(topic.topic, index)


def observe_ends(
    mirror: MirrorName, ends: Mapping[Partition, Offset], *, age_ms: int, now_ms: int
) -> SourceObservation:
    """Ends known of `age_ms` ago."""
    by_topic = dict[str, dict[int, Offset]]()
    for partition, end in sorted(ends.items()):
        by_topic.setdefault(partition.topic, {})[partition.index] = end
    topics = (
        ObservedTopic(topic=topic, ends=tuple(map(rows.get, range(max(rows) + 1))), ages_ms=(age_ms,) * (max(rows) + 1))
        for topic, rows in by_topic.items()
    )
    return SourceObservation(mirror=mirror, at_ms=now_ms, topics=tuple(topics))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    partition: int
    """One for each source broker at the topic's creation."""
    number: int
    """Counts from 1 in each driver process."""
    at_ms: int
    mirror: str
    driver: str

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.model.mirror import NameFilters, PartitionStatus
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
    copy_ids: tuple[str, str] | None = None
    """See `shorten_ids`. None: by an older version."""
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

    def without_other_topics(self, statuses: Mapping[Partition, PartitionStatus]) -> SourceObservation:
        """Without what is of other topics. Records without ids count unless `ObservedTopic.id` says that it is new."""
        recorded = dict[str, dict[int, tuple[str, str]]]()
        for p, status in statuses.items():
            recorded.setdefault(p.topic, {})[p.index] = shorten_ids(status)
        topics = tuple(_drop_other_copies(topic, recorded.get(topic.topic, {})) for topic in self.topics)
        return replace(self, topics=topics)

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
        ends, topic_ids = dict(self.get_ends()), self.get_new_topic_ids()
        for partition, reported in self.get_reported_ends():
            if partition in ends and partition.topic not in topic_ids and reported >= ends[partition].end:
                yield partition, ends[partition]

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


_ID_DIGITS: Final = 8  # random ones; observations of many topics must stay small


def shorten_ids(status: PartitionStatus) -> tuple[str, str]:
    return status.source_topic_id[:_ID_DIGITS], status.destination_topic_id[:_ID_DIGITS]


def _drop_other_copies(topic: ObservedTopic, recorded: Mapping[int, tuple[str, str]]) -> ObservedTopic:
    indexes = range(len(topic.ends))
    if topic.copy_ids is None:
        others = {index for index in indexes if index not in recorded}
        of_other_topics = set[int]()
    else:
        others = {index for index in indexes if recorded.get(index) != topic.copy_ids}
        source_id = topic.id[:_ID_DIGITS] or topic.copy_ids[0]
        of_other_topics = {index for index in others if recorded.get(index, (source_id, ""))[0] != source_id}
    if not others:
        return topic
    reported = dict(enumerate(topic.ends)) | dict(topic.reported or ())
    is_outdated = bool(recorded) and of_other_topics.issuperset(recorded)
    return replace(
        topic,
        id="" if is_outdated else topic.id or ("" if recorded or topic.copy_ids is None else topic.copy_ids[0]),
        ends=tuple(None if index in of_other_topics else end for index, end in enumerate(topic.ends)),
        starts=tuple(row for row in topic.starts if row[0] not in of_other_topics),
        rewritten=tuple(row for row in topic.rewritten if row[0] not in others),
        end_epochs=tuple(row for row in topic.end_epochs if row[0] not in others),
        recovery_points=tuple(row for row in topic.recovery_points if row[0] not in others),
        reported=None
        if topic.reported is None
        else tuple((index, None if index in others else reported.get(index)) for index in indexes),
    )


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

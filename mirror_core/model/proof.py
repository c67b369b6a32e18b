from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirror_core.model.names import MirrorName, Offset, Partition


class VerifiedEnd(NamedTuple):
    """From the first offset that the source still had."""

    end: int
    """Next offset after the last equal one."""
    destination_epoch: int
    """Destination's, before the read (KIP-101). If it now ends below `end`, the log was truncated and
    newer records are unverified."""
    at_ms: int
    """Wall clock of the newest comparison, or of a check that found nothing new."""
    records: int
    source_epoch: int = -1
    """The source may lose compared records, too. -1: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicVerification:
    """Partitions by number: a mirror may have 50,000 of them."""

    topic: str
    id: str
    partitions: tuple[tuple[int, VerifiedEnd], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDifference:
    topic: str
    index: int
    id: str
    offset: Offset | None
    kind: str
    at_ms: int

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorVerification:
    mirror: MirrorName
    topics: tuple[TopicVerification, ...]
    differences: tuple[KnownDifference, ...] = ()
    """At most one per partition, until it compares equal."""

    @classmethod
    def from_partitions(
        cls,
        mirror: MirrorName,
        verified_ends: Mapping[Partition, VerifiedEnd],
        ids: Mapping[str, str],
        differences: tuple[KnownDifference, ...] = (),
    ) -> MirrorVerification:
        by_topic: dict[str, list[tuple[int, VerifiedEnd]]] = {}
        for partition, verified_end in sorted(verified_ends.items()):
            by_topic.setdefault(partition.topic, []).append((partition.index, verified_end))
        topics = (TopicVerification(topic=t, id=ids[t], partitions=tuple(rows)) for t, rows in by_topic.items())
        return cls(mirror=mirror, topics=tuple(topics), differences=differences)

    def forget_partitions(self, partitions: Collection[Partition]) -> MirrorVerification:
        """Forgets everything about these partitions."""
        remaining = tuple(difference for difference in self.differences if difference.partition not in partitions)
        return replace(self.reset_partitions(partitions), differences=remaining)

    def reset_partitions(self, partitions: Collection[Partition]) -> MirrorVerification:
        """Forgets verified ends, but keeps known differences."""
        remaining_topics = (
            replace(t, partitions=tuple(row for row in t.partitions if Partition(t.topic, row[0]) not in partitions))
            for t in self.topics
        )
        return replace(self, topics=tuple(topic for topic in remaining_topics if topic.partitions))

    def iterate_partitions(self) -> Iterator[tuple[Partition, str, VerifiedEnd]]:
        for topic in self.topics:
            for number, verified_end in topic.partitions:
                yield Partition(topic.topic, number), topic.id, verified_end

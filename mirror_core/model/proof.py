from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirror_core.model.names import MirrorName, Offset, Partition


class Proved(NamedTuple):
    """From the first offset that the source still had."""

    end: int
    """Next offset after the last equal one."""
    epoch: int
    """Destination's, before the read (KIP-101). If it now ends below `end`, the log was truncated and
    newer records are unverified."""
    at_ms: int
    """Wall clock of the newest comparison, or of a check that found nothing new."""
    records: int
    source_epoch: int = -1
    """The source may lose compared records, too. -1: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProof:
    """Partitions by number: a mirror may have 50,000 of them."""

    topic: str
    id: str
    partitions: tuple[tuple[int, Proved], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
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
class Proof:
    mirror: MirrorName
    topics: tuple[TopicProof, ...]
    differs: tuple[Difference, ...] = ()
    """At most one per partition, until it compares equal."""

    @classmethod
    def of(
        cls,
        mirror: MirrorName,
        proved: Mapping[Partition, Proved],
        ids: Mapping[str, str],
        differs: tuple[Difference, ...] = (),
    ) -> Proof:
        by_topic: dict[str, list[tuple[int, Proved]]] = {}
        for partition, one in sorted(proved.items()):
            by_topic.setdefault(partition.topic, []).append((partition.index, one))
        topics = (TopicProof(topic=t, id=ids[t], partitions=tuple(rows)) for t, rows in by_topic.items())
        return cls(mirror=mirror, topics=tuple(topics), differs=differs)

    def without(self, partitions: Collection[Partition]) -> Proof:
        """Forgets everything about these partitions."""
        differs = tuple(one for one in self.differs if one.partition not in partitions)
        return replace(self.unproved(partitions), differs=differs)

    def unproved(self, partitions: Collection[Partition]) -> Proof:
        """Forgets verified ends, but keeps known differences."""
        kept = (
            replace(t, partitions=tuple(row for row in t.partitions if Partition(t.topic, row[0]) not in partitions))
            for t in self.topics
        )
        return replace(self, topics=tuple(topic for topic in kept if topic.partitions))

    def rows(self) -> Iterator[tuple[Partition, str, Proved]]:
        for topic in self.topics:
            for number, one in topic.partitions:
                yield Partition(topic.topic, number), topic.id, one

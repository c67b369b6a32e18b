"""How far the destination was seen to hold what the source held: so that the next look need not begin anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirror_core.model.names import MirrorName, Offset, Partition


class Proved(NamedTuple):
    """One partition's destination, from the first offset that the source still had."""

    end: int
    """Next offset after the last one that was compared equal."""
    epoch: int
    """Leader epoch of the destination before it was read (KIP-101): where that leader's log ends below `end` by now, it
    was cut since, and what stands there today was never compared."""
    at_ms: int
    """Wall clock when the newest part of it was compared; or when a comparison that passed found it to hold, by both
    sides' leaders, and nothing new."""
    records: int
    """Compared, in all."""
    source_epoch: int = -1
    """The same of the source, which may lose what was compared, too; -1: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProof:
    """The partitions of one topic, by number: short names in the record, since a mirror may have 50,000 of them."""

    topic: str
    id: str
    """Of the destination's topic: another one's content was never compared."""
    partitions: tuple[tuple[int, Proved], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Both sides of a partition were seen not to be the same."""

    topic: str
    index: int
    id: str
    """Of the destination's topic."""
    offset: Offset | None
    """The first such place; None: nobody said where."""
    kind: str
    """As `Finding.kind` has it."""
    at_ms: int
    """Wall clock of the newest comparison that has found it."""

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Of one mirror."""

    mirror: MirrorName
    topics: tuple[TopicProof, ...]
    differs: tuple[Difference, ...] = ()
    """What has not been seen to be equal since, one of each partition."""

    @classmethod
    def of(
        cls,
        mirror: MirrorName,
        proved: Mapping[Partition, Proved],
        ids: Mapping[str, str],
        differs: tuple[Difference, ...] = (),
    ) -> Proof:
        """`ids`: of the destination's topics."""
        by_topic: dict[str, list[tuple[int, Proved]]] = {}
        for partition, one in sorted(proved.items()):
            by_topic.setdefault(partition.topic, []).append((partition.index, one))
        topics = (TopicProof(topic=t, id=ids[t], partitions=tuple(rows)) for t, rows in by_topic.items())
        return cls(mirror=mirror, topics=tuple(topics), differs=differs)

    def without(self, partitions: Collection[Partition]) -> Proof:
        """The same, but of these nothing is known."""
        differs = tuple(one for one in self.differs if one.partition not in partitions)
        return replace(self.unproved(partitions), differs=differs)

    def unproved(self, partitions: Collection[Partition]) -> Proof:
        """The same, but these are to be compared anew. What was found to differ stays known."""
        kept = (
            replace(t, partitions=tuple(row for row in t.partitions if Partition(t.topic, row[0]) not in partitions))
            for t in self.topics
        )
        return replace(self, topics=tuple(topic for topic in kept if topic.partitions))

    def rows(self) -> Iterator[tuple[Partition, str, Proved]]:
        """Each partition, with the id of its topic."""
        for topic in self.topics:
            for number, one in topic.partitions:
                yield Partition(topic.topic, number), topic.id, one

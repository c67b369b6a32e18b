""""""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRange:
    """[start, end)."""

    partition: Partition
    start: Offset
    end: Offset
    stopped_at: Offset | None = None
    """LMO. From here on each log is its own."""
    compacted: bool = False
    """One side may lack a record only if it is a tombstone or a newer one has its key."""
    removes_unkeyed: bool = False
    """Compaction on both clusters removes old ones."""
    unreadable_reason: str = ""
    """Makes the verdict indeterminate."""


class ParityVerdict(StrEnum):
    PASSED = "passed"
    """Equal up to an offset per partition, with at least one record compared."""
    FAILED = "failed"
    INDETERMINATE = "indeterminate"
    """Something could not be compared, or there was nothing."""


ALTERED_KIND: Final = "altered"
"""By certificates: the copy is not what was copied."""
UNREADABLE_KIND_PREFIX: Final = "unreadable"
"""The cluster's name follows."""


def format_unreadable_kind(cluster: ClusterName) -> str:
    return f"{UNREADABLE_KIND_PREFIX} on {cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFinding:
    partition: Partition
    offset: Offset | None
    kind: str
    """missing, extra, reordered, key, value, headers, timestamp, log start, log end, altered, unreadable on CLUSTER."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """`verified_ends` is independent of user expectations."""

    verdict: ParityVerdict
    records: int
    chunks: int
    verified_ends: Mapping[Partition, Offset] = field(default_factory=dict)
    """Next offset after the last equal one."""
    compared_records: Mapping[Partition, int] = field(default_factory=dict)
    first_held_offsets: Mapping[Partition, Offset] = field(default_factory=dict)
    """Lower offsets were removed by retention on both sides."""
    findings: tuple[ParityFinding, ...] = ()
    damage_findings: tuple[ParityFinding, ...] = ()
    """Damaged or replaced batches; also among the reasons."""
    reasons: tuple[str, ...] = ()
    undecided_partitions: frozenset[Partition] = frozenset()
    """Not completely compared."""
    differing_partitions: frozenset[Partition] = frozenset()
    """Differ, may differ, or are damaged."""
    unmet_expectations: tuple[str, ...] = ()
    """Failed or unknown."""
    report: str = ""
    seconds: float = 0.0


class SalvageMatch(StrEnum):
    """What the other cluster has of a record in a divergent tail."""

    MISSING = "missing"
    """No record of its key since the divergence."""
    SAME_VALUE = "same value"
    """A record of equal key and value."""
    CONFLICTING = "conflicting"
    """Records of its key since the divergence, with other values."""
    UNKEYED = "no key"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedPartition:
    requested_range: ParityRange
    log_start: Offset
    """Earlier offsets were gone."""
    records: int
    matches: Mapping[str, int] = field(default_factory=dict)
    first_offsets: Mapping[str, tuple[Offset, ...]] = field(default_factory=dict)


class VerifiedEnd(NamedTuple):
    """From the first offset that the source still had."""

    end: int
    """Next offset after the last equal one."""
    destination_epoch: int
    """Destination's, before the read (KIP-101). If it now ends below `end`, the log was truncated and newer records
    are unverified.
    """
    at_ms: int
    """Wall clock of the newest comparison, or of a check without news."""
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
        remaining = tuple(difference for difference in self.differences if difference.partition not in partitions)
        return replace(self.reset_partitions(partitions), differences=remaining)

    def reset_partitions(self, partitions: Collection[Partition]) -> MirrorVerification:
        """Keeps known differences."""
        remaining_topics = (
            replace(t, partitions=tuple(row for row in t.partitions if Partition(t.topic, row[0]) not in partitions))
            for t in self.topics
        )
        return replace(self, topics=tuple(topic for topic in remaining_topics if topic.partitions))

    def iterate_partitions(self) -> Iterator[tuple[Partition, str, VerifiedEnd]]:
        for topic in self.topics:
            for number, verified_end in topic.partitions:
                yield Partition(topic.topic, number), topic.id, verified_end

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mirror_core.model.names import ClusterName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRange:
    """Offsets [start, end) to compare."""

    partition: Partition
    start: Offset
    end: Offset
    stopped_at: Offset | None = None
    """LMO. From here on each log is its own."""
    compacted: bool = False
    """A record may be on one side only if it is a tombstone or a newer one has its key."""
    removes_unkeyed: bool = False
    """Compaction on both clusters removes old records without keys."""
    unreadable_reason: str = ""
    """Why the range is unknown, which makes the verdict indeterminate."""


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
    """missing, extra, reordered, key, value, headers, timestamp, log start, log end, altered."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """`verified_ends` is independent of user expectations."""

    verdict: ParityVerdict
    records: int
    chunks: int
    verified_ends: Mapping[Partition, Offset] = field(default_factory=dict)
    """By partition: next offset after the last equal one."""
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
    """User expectations that failed or are unknown."""
    report: str = ""
    seconds: float = 0.0


class SalvageMatch(StrEnum):
    """What the other cluster has of a record in a divergent tail."""

    MISSING = "missing"
    """No record of its key since the divergence."""
    SAME_VALUE = "there too"
    """A record with its key and value."""
    CONFLICTING = "conflicting"
    """Records of its key since the divergence, with other values."""
    UNKEYED = "without a key"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedPartition:
    requested_range: ParityRange
    log_start: Offset
    """Earlier offsets were gone."""
    records: int
    matches: Mapping[str, int] = field(default_factory=dict)
    first_offsets: Mapping[str, tuple[Offset, ...]] = field(default_factory=dict)

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
    unkeyed_go: bool = False
    """Compaction on both clusters removes old records without keys."""
    unseen: str = ""
    """Why the range is unknown, which makes the verdict indeterminate."""


class Verdict(StrEnum):
    PASSED = "passed"
    """Equal up to an offset per partition, with at least one record compared."""
    FAILED = "failed"
    INDETERMINATE = "indeterminate"
    """Something could not be compared, or there was nothing."""


ALTERED: Final = "altered"
"""By certificates: the copy is not what was copied."""
UNREADABLE: Final = "unreadable"
"""The cluster's name follows."""


def unreadable_on(cluster: ClusterName) -> str:
    return f"{UNREADABLE} on {cluster}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    partition: Partition
    offset: Offset | None
    kind: str
    """missing, extra, reordered, key, value, headers, timestamp, log start, log end, altered."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityResult:
    """`verified_ends` is independent of user expectations."""

    verdict: Verdict
    records: int
    chunks: int
    proven: Mapping[Partition, Offset] = field(default_factory=dict)
    """By partition: next offset after the last equal one."""
    sampled: Mapping[Partition, int] = field(default_factory=dict)
    held_from: Mapping[Partition, Offset] = field(default_factory=dict)
    """Lower offsets were removed by retention on both sides."""
    findings: tuple[Finding, ...] = ()
    damaged: tuple[Finding, ...] = ()
    """Damaged or replaced batches; also among the reasons."""
    reasons: tuple[str, ...] = ()
    in_doubt: frozenset[Partition] = frozenset()
    """Not completely compared."""
    unlike: frozenset[Partition] = frozenset()
    """Differ, may differ, or are damaged."""
    unmet: tuple[str, ...] = ()
    """User expectations that failed or are unknown."""
    report: str = ""
    seconds: float = 0.0


class Fate(StrEnum):
    """What the other cluster has of a record in a divergent tail."""

    MISSING = "missing"
    """No record of its key since the divergence."""
    THERE = "there too"
    """A record with its key and value."""
    CONFLICTING = "conflicting"
    """Records of its key since the divergence, with other values."""
    UNKEYED = "without a key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    wanted: ParityRange
    log_start: Offset
    """Earlier offsets were gone."""
    records: int
    fates: Mapping[str, int] = field(default_factory=dict)
    first: Mapping[str, tuple[Offset, ...]] = field(default_factory=dict)

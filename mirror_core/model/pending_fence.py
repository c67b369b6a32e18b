"""A fence that Mirrorbook will apply, keeps, or will lift."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mirror_core.model.errors import MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.names import NO_OFFSETS, ClusterName, MirrorName, Offset, Partition, PartitionOffsets


class FenceAction(StrEnum):
    APPLY = "apply"
    """Once the cluster answers: deny writes to the mirror's topics."""
    LIFT = "lift"
    """Once the cluster answers: remove the denials of an abandoned run."""


LateRanges = Mapping[Partition, tuple[Offset, Offset]]
"""[first, next) beyond the last mirrored offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateSplit:
    """By the records' own times."""

    before: LateRanges
    """Before the cluster was given up: lost with it."""
    since: LateRanges
    """By applications that were not fenced."""
    unknown: LateRanges


NO_LATE_RANGES: Final = LateSplit(before={}, since={}, unknown={})


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRestoration:
    """A watcher found an applied fence removed, and applied it again."""

    at_ms: int
    by: str
    lifted_by: str = ""
    """Empty: not by `cluster unfence`, or not recorded."""
    lifted_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFence:
    """At most one per mirror; a later one replaces it. Once applied it stays and is watched."""

    mirror: MirrorName
    cluster: ClusterName
    action: FenceAction
    run: str
    since_ms: int
    applied_at_ms: int | None = None
    """When every broker showed it."""
    log_ends: PartitionOffsets = NO_OFFSETS
    """When the applied fence was verified. Records from the LMO up to them are late writes."""
    since_offsets: PartitionOffsets = NO_OFFSETS
    """First offset that is, by its record's own time, not older than `since_ms` and that no earlier observation had
    seen; the log's end if there is none. Other partitions: unknown.
    """
    uncopied: tuple[tuple[str, int, int | None], ...] | None = None
    """Partitions without a copy, with their offsets of before `since_ms` (None: unreadable). None: never listed."""
    uncopied_since: tuple[tuple[str, int, int], ...] = ()
    """Offsets of these since."""
    unreported: tuple[str, ...] = ()
    """They cannot be detected again."""
    by_command: bool = False
    """`fence_command` applied it; brokers do not show it."""
    trouble: Finding | None = None
    """Why the last attempt failed, or what is wrong since."""
    restored: FenceRestoration | None = None
    """The last time."""

    def record_failure(self, error: MirrorError) -> PendingFence:
        if error.retryable:
            return replace(self, trouble=Finding("fence_unanswered", self.cluster, reason=error))
        return replace(self, trouble=Finding("fence_attempt_failed", self.cluster, reason=error))

    def find_trouble(self, *, is_answering: bool) -> Finding | None:
        """Without "did not answer" of the last attempt, if the cluster answers now."""
        is_outdated = is_answering and self.trouble is not None and self.trouble.code == "fence_unanswered"
        return None if is_outdated else self.trouble

    def add_since_offsets(self, offsets: Mapping[Partition, Offset]) -> PendingFence:
        """Recorded ones stay."""
        since_offsets = {**offsets, **self.since_offsets.to_mapping()}
        return replace(self, since_offsets=PartitionOffsets.from_mapping(since_offsets))

    @property
    def uncopied_offsets(self) -> dict[Partition, int | None]:
        return {Partition(topic, index): offsets for topic, index, offsets in self.uncopied or ()}

    @property
    def uncopied_since_offsets(self) -> dict[Partition, int]:
        return {Partition(topic, index): offsets for topic, index, offsets in self.uncopied_since}

    def split_late_ranges(self, ranges: LateRanges) -> LateSplit:
        since_offsets = self.since_offsets.to_mapping()
        middle = {p: min(end, max(start, since_offsets[p])) for p, (start, end) in ranges.items() if p in since_offsets}
        return LateSplit(
            before={p: (ranges[p][0], offset) for p, offset in middle.items() if offset > ranges[p][0]},
            since={p: (offset, ranges[p][1]) for p, offset in middle.items() if offset < ranges[p][1]},
            unknown={p: offset_range for p, offset_range in ranges.items() if p not in middle},
        )

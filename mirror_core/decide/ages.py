"""How old the things are that a failover relies on: group sync, comparison, last drill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.drills import has_passed, list_drill_runs
from mirror_core.decide.proof import read_verified
from mirror_core.model.mirror import GroupSyncTime, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.proof import MirrorVerification, VerifiedEnd
from mirror_core.model.run import Run


class FreshnessKind(StrEnum):
    GROUPS = "groups"
    VERIFICATION = "proof"
    DRILL = "drill"


MAX_AGES_S: Final[Mapping[FreshnessKind, float]] = MappingProxyType(
    {FreshnessKind.GROUPS: 600.0, FreshnessKind.VERIFICATION: 86_400.0, FreshnessKind.DRILL: 35 * 86_400.0}
)
"""Warn above this age. The alert rules use the same values; a test compares them."""
STALE_REMEDIES: Final[Mapping[FreshnessKind, str]] = MappingProxyType(
    {
        FreshnessKind.GROUPS: "is DAG mirror_sync paused or red, or no data plane at work? `mirrorbook sync {mirror}`",
        FreshnessKind.VERIFICATION: "is DAG mirror_parity paused or red? `mirrorbook parity {mirror}`",
        FreshnessKind.DRILL: "is DAG mirror_drill paused or red? `mirrorbook drill run {mirror}`",
    }
)
STALE_TEXTS: Final[Mapping[FreshnessKind, str]] = MappingProxyType(
    {
        FreshnessKind.GROUPS: "groups' offsets were synced",
        FreshnessKind.VERIFICATION: "each partition was compared",
        FreshnessKind.DRILL: "a drill came through",
    }
)
NEVER_TEXTS: Final[Mapping[FreshnessKind, str]] = MappingProxyType(
    {
        FreshnessKind.GROUPS: "groups' offsets were never synced",
        FreshnessKind.VERIFICATION: "no partition was ever compared",
        FreshnessKind.DRILL: "no drill has come through yet",
    }
)


def list_newest_times(
    mirror: MirrorName,
    groups: GroupSyncTime | None,
    verification: MirrorVerification | None,
    runs: Iterator[Run],
    statuses: Mapping[Partition, PartitionStatus],
) -> Iterator[tuple[FreshnessKind, int]]:
    """Wall clock of the newest of each kind, in ms; kinds that never happened are left out.

    For the comparison: the partition compared longest ago. FAILED partitions are not compared.
    """
    if groups is not None:
        yield FreshnessKind.GROUPS, groups.synced_ms
    compared = [verified.at_ms for verified in _map_compared(verification, statuses).values() if verified is not None]
    if compared:
        yield FreshnessKind.VERIFICATION, min(compared)
    drill_run = next((run for run in list_drill_runs(runs, mirror) if has_passed(run)), None)
    if drill_run is not None:
        yield FreshnessKind.DRILL, drill_run.started_ms


def to_newest_times(
    newest_ms: Mapping[FreshnessKind, int], statuses: Mapping[Partition, PartitionStatus]
) -> dict[FreshnessKind, int | None]:
    comparable = any(status.state is not PartitionState.FAILED for status in statuses.values())
    return {kind: newest_ms.get(kind) for kind in FreshnessKind if kind is not FreshnessKind.VERIFICATION or comparable}


def count_never_compared(verification: MirrorVerification | None, statuses: Mapping[Partition, PartitionStatus]) -> int:
    compared = _map_compared(verification, statuses)
    missing = sum(verified is None for verified in compared.values())
    return missing if missing < len(compared) else 0


def _map_compared(
    verification: MirrorVerification | None, statuses: Mapping[Partition, PartitionStatus]
) -> dict[Partition, VerifiedEnd | None]:
    healthy_statuses = {p: status for p, status in statuses.items() if status.state is not PartitionState.FAILED}
    verified = read_verified(
        verification, {p.topic: status.destination_topic_id for p, status in healthy_statuses.items()}
    )
    return {p: verified.get(p) for p in healthy_statuses}

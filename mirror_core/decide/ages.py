"""How old the things are that a failover relies on: group sync, comparison, last drill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.drills import came_through, runs_of
from mirror_core.decide.proof import recorded
from mirror_core.model.mirror import GroupsSeen, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.proof import Proof, Proved
from mirror_core.model.run import Run


class Known(StrEnum):
    GROUPS = "groups"
    PROOF = "proof"
    DRILL = "drill"


OLD_S: Final[Mapping[Known, float]] = MappingProxyType(
    {Known.GROUPS: 600.0, Known.PROOF: 86_400.0, Known.DRILL: 35 * 86_400.0}
)
"""Warn above this age. The alert rules use the same values; a test compares them."""
REMEDY: Final[Mapping[Known, str]] = MappingProxyType(
    {
        Known.GROUPS: "is DAG mirror_sync paused or red, or no data plane at work? `mirrorbook sync {mirror}`",
        Known.PROOF: "is DAG mirror_parity paused or red? `mirrorbook parity {mirror}`",
        Known.DRILL: "is DAG mirror_drill paused or red? `mirrorbook drill run {mirror}`",
    }
)
WORDS: Final[Mapping[Known, str]] = MappingProxyType(
    {
        Known.GROUPS: "groups' offsets were synced",
        Known.PROOF: "each partition was compared",
        Known.DRILL: "a drill came through",
    }
)
NEVER: Final[Mapping[Known, str]] = MappingProxyType(
    {
        Known.GROUPS: "groups' offsets were never synced",
        Known.PROOF: "no partition was ever compared",
        Known.DRILL: "no drill has come through yet",
    }
)


def known_since(
    mirror: MirrorName,
    groups: GroupsSeen | None,
    proof: Proof | None,
    runs: Iterator[Run],
    statuses: Mapping[Partition, PartitionStatus],
) -> Iterator[tuple[Known, int]]:
    """Wall clock of the newest of each kind, in ms; kinds that never happened are left out.

    For the comparison: the partition compared longest ago. FAILED partitions are not compared.
    """
    if groups is not None:
        yield Known.GROUPS, groups.synced_ms
    compared = [one.at_ms for one in _compared(proof, statuses).values() if one is not None]
    if compared:
        yield Known.PROOF, min(compared)
    drilled = next((run for run in runs_of(runs, mirror) if came_through(run)), None)
    if drilled is not None:
        yield Known.DRILL, drilled.started_ms


def newest_of(known_ms: Mapping[Known, int], statuses: Mapping[Partition, PartitionStatus]) -> dict[Known, int | None]:
    comparable = any(one.state is not PartitionState.FAILED for one in statuses.values())
    return {what: known_ms.get(what) for what in Known if what is not Known.PROOF or comparable}


def never_compared(proof: Proof | None, statuses: Mapping[Partition, PartitionStatus]) -> int:
    seen = _compared(proof, statuses)
    missing = sum(one is None for one in seen.values())
    return missing if missing < len(seen) else 0


def _compared(proof: Proof | None, statuses: Mapping[Partition, PartitionStatus]) -> dict[Partition, Proved | None]:
    well = {p: one for p, one in statuses.items() if one.state is not PartitionState.FAILED}
    known = recorded(proof, {p.topic: one.destination_topic_id for p, one in well.items()})
    return {p: known.get(p) for p in well}

"""Readiness as a table: one row for each partition, from a plan and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.ages import FreshnessKind, list_newest_times
from mirror_core.decide.clocks import compute_age_s, find_snapshot_clock_behind_s
from mirror_core.decide.failover import decide_failover
from mirror_core.decide.loss import compute_snapshot_loss
from mirror_core.decide.proof import read_verified
from mirror_core.decide.view import DestinationSnapshot, MirrorSnapshot, SourceSnapshot, list_lags
from mirror_core.model.mirror import PartitionState, is_lease_fresh
from mirror_core.model.run import Run

NEVER_AGE_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessRow:
    """None: unknown now. Values of the whole mirror repeat in each row."""

    topic: str
    partition: int
    state: PartitionState
    reason: str
    position: int | None
    source_end: int | None
    lag: int | None
    behind_s: float | None
    missing: int | None
    standstill_s: float | None
    proved: int | None
    proof_age_s: float | None
    sync_age_s: float | None
    drill_age_s: float | None
    heartbeat_age_s: float | None
    data_plane: bool
    refused: str


def list_readiness_rows(snapshot: MirrorSnapshot, runs: Iterable[Run]) -> Iterator[ReadinessRow]:
    destination = snapshot.destination if isinstance(snapshot.destination, DestinationSnapshot) else None
    ends = snapshot.source.stable_ends if isinstance(snapshot.source, SourceSnapshot) else {}
    verified = read_verified(
        snapshot.verification, {name: topic.id for name, topic in destination.topics.items()} if destination else {}
    )
    newest_ms = dict(
        list_newest_times(snapshot.mirror.name, snapshot.groups, snapshot.verification, iter(runs), snapshot.statuses)
    )
    ages = {
        kind: compute_age_s(snapshot.now_ms, newest_ms[kind]) if kind in newest_ms else NEVER_AGE_S
        for kind in FreshnessKind
    }
    has_known_ages = find_snapshot_clock_behind_s(snapshot) is None  # or else an age of 0 s may be any
    refused = "; ".join(decide_failover(snapshot).reasons)
    bound = compute_snapshot_loss(snapshot)
    for partition, lag in list_lags(snapshot):
        position = destination.positions.get(partition) if destination else None
        verified_end = verified[partition].end if partition in verified else 0
        status = snapshot.statuses[partition]
        yield ReadinessRow(
            topic=partition.topic,
            partition=partition.index,
            state=status.state,
            reason=status.reason or "",
            position=position,
            source_end=ends.get(partition),
            lag=lag,
            behind_s=bound.partitions[partition].behind_s if has_known_ages else None,
            missing=bound.partitions[partition].missing,
            standstill_s=snapshot.forecast.seconds if snapshot.forecast else None,
            proved=None if position is None else min(verified_end, position),
            proof_age_s=ages[FreshnessKind.VERIFICATION] if partition in verified else NEVER_AGE_S,
            sync_age_s=ages[FreshnessKind.GROUPS],
            drill_age_s=ages[FreshnessKind.DRILL],
            heartbeat_age_s=bound.heartbeat_age_s if has_known_ages else None,
            data_plane=is_lease_fresh(snapshot.lease, snapshot.now_ms),
            refused=refused,
        )

"""Readiness as a table: one row for each partition, from a plan and its figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.ages import Known, known_since
from mirror_core.decide.clocks import age_s, behind_of
from mirror_core.decide.failover import decide
from mirror_core.decide.loss import loss_of
from mirror_core.decide.proof import recorded
from mirror_core.decide.view import DestinationView, SourceView, View, lags_of
from mirror_core.model.mirror import PartitionState, is_fresh
from mirror_core.model.run import Run

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRow:
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


def readiness(view: View, runs: Iterable[Run]) -> Iterator[ReadyRow]:
    there = view.destination if isinstance(view.destination, DestinationView) else None
    ends = view.source.stable_ends if isinstance(view.source, SourceView) else {}
    proved = recorded(view.proof, {name: topic.id for name, topic in there.topics.items()} if there else {})
    since = dict(known_since(view.mirror.name, view.groups, view.proof, iter(runs), view.statuses))
    ages = {what: age_s(view.now_ms, since[what]) if what in since else NEVER for what in Known}
    dated = behind_of(view) is None  # or else an age of 0 s may be any
    refused = "; ".join(decide(view).reasons)
    loss = loss_of(view)
    for partition, lag in lags_of(view):
        position = there.positions.get(partition) if there else None
        upto = proved[partition].end if partition in proved else 0
        status = view.statuses[partition]
        yield ReadyRow(
            topic=partition.topic,
            partition=partition.index,
            state=status.state,
            reason=status.reason or "",
            position=position,
            source_end=ends.get(partition),
            lag=lag,
            behind_s=loss.partitions[partition].behind_s if dated else None,
            missing=loss.partitions[partition].missing,
            standstill_s=view.forecast.seconds if view.forecast else None,
            proved=None if position is None else min(upto, position),
            proof_age_s=ages[Known.PROOF] if partition in proved else NEVER,
            sync_age_s=ages[Known.GROUPS],
            drill_age_s=ages[Known.DRILL],
            heartbeat_age_s=loss.heartbeat_s if dated else None,
            data_plane=is_fresh(view.lease, view.now_ms),
            refused=refused,
        )

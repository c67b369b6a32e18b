"""Mirror views, shared by tests."""

from __future__ import annotations

from mirror_core.decide.steps import HoldingRun
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState

MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("east"),
    destination=ClusterName("west"),
    source_id="E",
    destination_id="W",
    topics=("t",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=0,
)

RUN = Run(
    id="m-failover-1",
    number=1,
    plan=Plan(kind=RunKind.FAILOVER, mirror=MIRROR.name, mode=RunMode.PLANNED, steps=(), bound_facts=()),
    plan_hash="0" * 12,
    state=RunState.RUNNING,
    started_by="ann@desk",
    conducted_by="ann@desk",
    started_ms=0,
    desired=DesiredState.STARTED,
)
HOLDER = HoldingRun.from_run(RUN, is_past_no_return=False)
TOO_WIDE = Finding("fence_too_wide", "east", topics=("orders",), shuts_out="yes", reason="broker 1 says so")

FAILED_PARTITION = PartitionStatus(
    partition=Partition("orders", 0),
    state=PartitionState.FAILED,
    source_topic_id="s",
    destination_topic_id="d",
    kind=FailureKind.ALTERED,
    reason="other times",
)

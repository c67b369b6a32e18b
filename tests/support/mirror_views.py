"""Mirror views, shared by tests."""

from __future__ import annotations

from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
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

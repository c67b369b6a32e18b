"""Run pages, shared by tests."""

from __future__ import annotations

from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName
from mirror_core.model.run import (
    FailbackStrategy,
    Plan,
    PlanFact,
    PlanStep,
    Run,
    RunKind,
    RunMode,
    RunState,
)

BEGUN = 1_790_000_000_123

PLAN = Plan(
    kind=RunKind.FAILOVER,
    mirror=MirrorName("m"),
    mode=RunMode.PLANNED,
    steps=(PlanStep(name="fence", action="deny"),),
    bound_facts=(PlanFact("source", "E"), PlanFact("groups", "none")),
    figures={FigureKey.LAG_OFFSETS: 5},
    partitions={"a-0": {FigureKey.LAG_OFFSETS: 5}},
    groups={"g": {FigureKey.READ_AGAIN_MOST: 3}},
    strategies={"a": FailbackStrategy.RECREATE},
)

RUN = Run(
    id="r-7",
    number=1,
    plan=PLAN,
    plan_hash="0123456789ab",
    state=RunState.DONE,
    started_by="ann",
    started_ms=BEGUN,
    desired=DesiredState.STARTED,
    conducted_by="ann",
)

"""Unplanned runs, shared by tests."""

from __future__ import annotations

from mirror_core.decide.steps import list_step_names
from mirror_core.model.run import Run, RunKind, RunMode
from mirror_core.runbook.failover_conductor import Failover

STEPS = list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)


def begin(failover: Failover, mode: RunMode = RunMode.UNPLANNED) -> Run:
    decision = failover.decide(mode)
    assert decision.reasons == ()
    return failover.begin(decision.plan.hash, mode)

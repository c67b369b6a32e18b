"""The table of steps: what holds for every row, and that there is somebody who does it."""

from __future__ import annotations

import pytest

from mirror_core.decide.steps import (
    RUN_STEPS,
    StepNeed,
    WriteLocation,
    find_no_return_step,
    list_standstill_steps,
    list_step_names,
    plan_steps,
)
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.run import RunKind, RunMode
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.unplanned_steps import UnplannedSteps
from tests.support.steps_mirror import MIRROR


@pytest.mark.parametrize(
    ("kind", "mode", "acts"),
    [
        (RunKind.FAILOVER, RunMode.PLANNED, PlannedSteps),
        (RunKind.FAILOVER, RunMode.UNPLANNED, UnplannedSteps),
        (RunKind.FAILBACK, RunMode.PLANNED, FailbackSteps),
    ],
)
def test_each_step_has_a_method_of_its_name(kind: RunKind, mode: RunMode, acts: type) -> None:
    assert len(set(list_step_names(kind, mode))) == len(RUN_STEPS[kind, mode])
    for name in list_step_names(kind, mode):
        assert callable(getattr(acts, name)), name


@pytest.mark.parametrize(("kind", "mode"), RUN_STEPS)
def test_behind_the_point_of_no_return_there_is_no_abort(kind: RunKind, mode: RunMode) -> None:
    order = list_step_names(kind, mode)
    turning = order.index(find_no_return_step(kind, mode))
    assert [step.is_reversible for step in RUN_STEPS[kind, mode]] == [True] * turning + [False] * (len(order) - turning)


def test_an_unplanned_failover_needs_nothing_but_the_destination() -> None:
    assert {need for step in RUN_STEPS[RunKind.FAILOVER, RunMode.UNPLANNED] for need in step.needs} == {
        StepNeed.DESTINATION
    }


def test_applications_stand_still_once_from_the_fence_until_they_are_let_in() -> None:
    assert [step.writes for step in RUN_STEPS[RunKind.FAILOVER, RunMode.PLANNED]] == [WriteLocation.SOURCE] + [
        WriteLocation.NOWHERE
    ] * 6 + [WriteLocation.DESTINATION] * 3
    still = list_standstill_steps(RunKind.FAILOVER)
    assert (still[0], still[-1]) == ("fence", find_no_return_step(RunKind.FAILOVER))
    assert list_standstill_steps(RunKind.FAILBACK) == ()


def test_nobody_waits_for_spark_while_applications_stand_still() -> None:
    waiting = [
        s.name
        for s in RUN_STEPS[RunKind.FAILOVER, RunMode.PLANNED]
        if StepNeed.SPARK in s.needs and s.writes is WriteLocation.NOWHERE
    ]
    assert waiting == []


def test_a_plan_says_each_step_with_the_clusters_names() -> None:
    for kind in RunKind:
        text = " ".join(step.action for step in plan_steps(kind, MIRROR))
        assert "ea{st}" in text
        assert "west" in text
        assert "{destination}" not in text
    assert "mirror m-back from west to ea{st}" in plan_steps(RunKind.FAILBACK, MIRROR)[3].action


def test_only_the_fence_reads_otherwise_without_an_authorizer() -> None:
    with_it, without = (
        plan_steps(RunKind.FAILOVER, MIRROR),
        plan_steps(RunKind.FAILOVER, MIRROR, barred=WriteBarrier.NONE),
    )
    assert [a.name for a, b in zip(with_it, without, strict=True) if a != b] == ["fence"]
    assert "cannot be fenced" in without[1].action


def test_a_plan_names_the_command_that_closes_the_source() -> None:
    for mode, name in ((RunMode.PLANNED, "fence"), (RunMode.UNPLANNED, "stand")):
        by_denials = plan_steps(RunKind.FAILOVER, MIRROR, mode)
        by_command = plan_steps(RunKind.FAILOVER, MIRROR, mode, barred=WriteBarrier.COMMAND)
        changed = [b for a, b in zip(by_denials, by_command, strict=True) if a != b]
        assert [step.name for step in changed] == [name]
        assert "fence_command" in changed[0].action

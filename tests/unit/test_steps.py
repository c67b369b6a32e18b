"""The table of steps: what holds for every row, and that there is somebody who does it."""

from __future__ import annotations

import pytest

from mirror_core.decide.steps import STEPS, Need, Writes, names, planned, point_of_no_return, standing_still
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.ruling import Barred
from mirror_core.model.run import Mode, RunKind
from mirror_core.runbook.failback_steps import FailbackSteps
from mirror_core.runbook.failover_steps import Steps
from mirror_core.runbook.lost_steps import LostSteps

MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("ea{st}"),
    destination=ClusterName("west"),
    source_id="E",
    destination_id="W",
    topics=("orders",),
    producer_id=1 << 62,
    desired=Desired.STARTED,
    created_ms=1,
)


@pytest.mark.parametrize(
    ("kind", "mode", "acts"),
    [
        (RunKind.FAILOVER, Mode.PLANNED, Steps),
        (RunKind.FAILOVER, Mode.UNPLANNED, LostSteps),
        (RunKind.FAILBACK, Mode.PLANNED, FailbackSteps),
    ],
)
def test_each_step_has_a_method_of_its_name(kind: RunKind, mode: Mode, acts: type) -> None:
    assert len(set(names(kind, mode))) == len(STEPS[kind, mode])
    for name in names(kind, mode):
        assert callable(getattr(acts, name)), name


@pytest.mark.parametrize(("kind", "mode"), STEPS)
def test_behind_the_point_of_no_return_there_is_no_abort(kind: RunKind, mode: Mode) -> None:
    order = names(kind, mode)
    turning = order.index(point_of_no_return(kind, mode))
    assert [step.reversible for step in STEPS[kind, mode]] == [True] * turning + [False] * (len(order) - turning)


def test_an_unplanned_failover_needs_nothing_but_the_destination() -> None:
    assert {need for step in STEPS[RunKind.FAILOVER, Mode.UNPLANNED] for need in step.needs} == {Need.DESTINATION}


def test_applications_stand_still_once_from_the_fence_until_they_are_let_in() -> None:
    assert [step.writes for step in STEPS[RunKind.FAILOVER, Mode.PLANNED]] == [Writes.SOURCE] + [Writes.NOWHERE] * 6 + [
        Writes.DESTINATION
    ] * 3
    still = standing_still(RunKind.FAILOVER)
    assert (still[0], still[-1]) == ("fence", point_of_no_return(RunKind.FAILOVER))
    assert standing_still(RunKind.FAILBACK) == ()


def test_nobody_waits_for_spark_while_applications_stand_still() -> None:
    waiting = [
        s.name for s in STEPS[RunKind.FAILOVER, Mode.PLANNED] if Need.SPARK in s.needs and s.writes is Writes.NOWHERE
    ]
    assert waiting == []


def test_a_plan_says_each_step_with_the_clusters_names() -> None:
    for kind in RunKind:
        text = " ".join(step.action for step in planned(kind, MIRROR))
        assert "ea{st}" in text
        assert "west" in text
        assert "{destination}" not in text
    assert "mirror m-back from west to ea{st}" in planned(RunKind.FAILBACK, MIRROR)[3].action


def test_only_the_fence_reads_otherwise_without_an_authorizer() -> None:
    with_it, without = planned(RunKind.FAILOVER, MIRROR), planned(RunKind.FAILOVER, MIRROR, barred=Barred.BY_NOTHING)
    assert [a.name for a, b in zip(with_it, without, strict=True) if a != b] == ["fence"]
    assert "cannot be fenced" in without[1].action


def test_a_plan_names_the_command_that_closes_the_source() -> None:
    for mode, name in ((Mode.PLANNED, "fence"), (Mode.UNPLANNED, "stand")):
        by_denials = planned(RunKind.FAILOVER, MIRROR, mode)
        by_command = planned(RunKind.FAILOVER, MIRROR, mode, barred=Barred.BY_COMMAND)
        changed = [b for a, b in zip(by_denials, by_command, strict=True) if a != b]
        assert [step.name for step in changed] == [name]
        assert "fence_command" in changed[0].action

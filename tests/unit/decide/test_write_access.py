"""Who can write where, and what to do: one typed answer for each place that a mirror can be in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirror_core.cli.mirror_headline import list_headline
from mirror_core.decide.process_liveness import ConductorState, ConductorStatus
from mirror_core.decide.run_status import OpenRunFence, RunSituation, format_run_status
from mirror_core.decide.steps import RUN_STEPS, WriteLocation, find_no_return_step, list_step_names
from mirror_core.decide.write_access import AccessSituation, OperatorAction, WriteAccess, decide_write_access
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import ClusterName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepRecord, StepState
from tests.support.mirror_views import FAILED_PARTITION, MIRROR, RUN

PENDING = PendingFence(mirror=MIRROR.name, cluster=MIRROR.source, action=FenceAction.APPLY, run=RUN.id, since_ms=1)
STOPPED = replace(MIRROR, desired=DesiredState.STOPPED)
QUIET = AccessSituation(mirror=MIRROR, newest_run=None, pending_fence=None, is_source_silent=False, is_copying=True)
GONE = ConductorStatus(state=ConductorState.RELEASED, by="ann@desk")
PLACES = [(*which, step.name) for which, steps in RUN_STEPS.items() for step in steps]


def at_step(kind: RunKind, mode: RunMode, last: str) -> tuple[Run, Sequence[StepRecord]]:
    """A run whose step `last` has begun; the ones before are done."""
    names = list_step_names(kind, mode)
    steps = [
        StepRecord(
            run=RUN.id,
            step=name,
            state=StepState.STARTED if name == last else StepState.DONE,
            attempt=1,
            started_ms=10 * number,
            ended_ms=None if name == last else 10 * number + 5,
        )
        for number, name in enumerate(names[: names.index(last) + 1])
    ]
    return replace(RUN, plan=replace(RUN.plan, kind=kind, mode=mode)), steps


def open_run(kind: RunKind, mode: RunMode, last: str, **more: object) -> RunSituation:
    run, steps = at_step(kind, mode, last)
    names = list_step_names(kind, mode)
    fields: dict[str, object] = {
        "is_past_no_return": names.index(last) >= names.index(find_no_return_step(kind, mode)),
        "conductor": GONE,
    }
    return RunSituation(run=run, steps=steps, mirror=MIRROR, pending_fence=None, is_copying=True, **{**fields, **more})  # type: ignore[arg-type]


def ended(kind: RunKind, state: RunState) -> RunSituation:
    run = replace(RUN, plan=replace(RUN.plan, kind=kind), state=state, ended_ms=5)
    return RunSituation(run=run, steps=(), mirror=MIRROR, pending_fence=None, is_past_no_return=False, is_copying=False)


def decide(run: RunSituation) -> WriteAccess:
    return decide_write_access(replace(QUIET, newest_run=run))


@pytest.mark.parametrize(("kind", "mode", "step"), PLACES)
def test_an_open_run_names_one_cluster_or_none(kind: RunKind, mode: RunMode, step: str) -> None:
    access, names = decide(open_run(kind, mode, step)), list_step_names(kind, mode)
    row = next(row for row in RUN_STEPS[kind, mode] if row.name == step)
    assert access.run is not None
    assert (access.run.step, access.run.step_state, access.run.can_abort) == (
        step,
        StepState.STARTED,
        names.index(step) < names.index(find_no_return_step(kind, mode)),
    )
    assert access.action is OperatorAction.RESUME_RUN
    is_nowhere = row.writes is WriteLocation.NOWHERE
    assert (access.cluster is None) >= is_nowhere
    assert (access.run.fence is not None) is (is_nowhere and access.run.can_abort)
    if kind is RunKind.FAILOVER and not is_nowhere:
        assert access.cluster == {WriteLocation.SOURCE: "east", WriteLocation.DESTINATION: "west"}[row.writes]


def test_a_failback_that_has_caught_up_leaves_the_answer_to_the_failover_home() -> None:
    access = decide(open_run(RunKind.FAILBACK, RunMode.PLANNED, "catch_up"))
    assert (access.writes, access.cluster) == (None, None)
    assert decide(open_run(RunKind.FAILBACK, RunMode.PLANNED, "align")).cluster == "west"


def test_a_fence_that_was_lifted_lets_applications_write_on_the_source_and_ends_the_run() -> None:
    access = decide(open_run(RunKind.FAILOVER, RunMode.PLANNED, "drain", lifted_denials=2))
    assert (access.writes, access.cluster, access.action) == (WriteLocation.SOURCE, "east", OperatorAction.ABORT_RUN)
    assert access.run is not None
    assert access.run.fence is OpenRunFence.LIFTED


def test_a_partition_that_failed_after_the_plan_ends_the_run() -> None:
    access = decide(open_run(RunKind.FAILOVER, RunMode.PLANNED, "prove", failed_since_plan=[FAILED_PARTITION]))
    assert (access.cluster, access.action) == ("east", OperatorAction.ABORT_RUN)


def test_a_run_with_a_living_conductor_is_waited_for() -> None:
    alive = replace(GONE, state=ConductorState.ALIVE)
    assert decide(open_run(RunKind.FAILOVER, RunMode.PLANNED, "drain", conductor=alive)).action is OperatorAction.WAIT


@pytest.mark.parametrize(("kind", "mode", "step"), PLACES)
@pytest.mark.parametrize("is_source_silent", [False, True])
def test_a_planned_failover_whose_source_is_silent_goes_on_unplanned_as_its_status_says(
    kind: RunKind, mode: RunMode, step: str, is_source_silent: bool
) -> None:
    situation = open_run(kind, mode, step)
    access = decide_write_access(replace(QUIET, newest_run=situation, is_source_silent=is_source_silent))
    is_told = any("--mode unplanned" in line for line in format_run_status(situation))
    assert access.run is not None
    assert access.run.can_go_on_unplanned is (is_told and is_source_silent)
    command = f"mirrorbook failover run {MIRROR.name} --mode unplanned"
    assert any(command in line for line in list_headline(access, MIRROR)) is access.run.can_go_on_unplanned


def test_a_source_that_returned_offers_both_ways() -> None:
    access = decide(open_run(RunKind.FAILOVER, RunMode.UNPLANNED, "stand", source_returned=True))
    assert (access.cluster, access.action) == (None, OperatorAction.LEAVE_BEHIND)


@pytest.mark.parametrize(
    ("situation", "writes", "action"),
    [
        (QUIET, WriteLocation.SOURCE, OperatorAction.NOTHING),
        (replace(QUIET, is_copying=False), WriteLocation.SOURCE, OperatorAction.SUPERVISE),
        (replace(QUIET, has_failed=True), WriteLocation.SOURCE, OperatorAction.RECOVER),
        (
            replace(QUIET, mirror=replace(MIRROR, failback_run="m-failback-1"), has_failed=True),
            WriteLocation.SOURCE,
            OperatorAction.SHOW_FAILBACK,
        ),
        (replace(QUIET, is_source_silent=True), WriteLocation.SOURCE, OperatorAction.PLAN_UNPLANNED_FAILOVER),
        (
            replace(QUIET, mirror=replace(MIRROR, desired=DesiredState.PAUSED)),
            WriteLocation.SOURCE,
            OperatorAction.RESUME_MIRROR,
        ),
        (replace(QUIET, mirror=STOPPED), WriteLocation.SOURCE, OperatorAction.START),
        (replace(QUIET, mirror=replace(STOPPED, failback_run="m-failback-1")), None, OperatorAction.START),
        (
            replace(QUIET, mirror=STOPPED, newest_run=ended(RunKind.FAILOVER, RunState.ABORTED)),
            WriteLocation.SOURCE,
            OperatorAction.START,
        ),
        (
            replace(QUIET, mirror=STOPPED, pending_fence=replace(PENDING, action=FenceAction.LIFT)),
            None,
            OperatorAction.START,
        ),
        (
            replace(QUIET, pending_fence=replace(PENDING, action=FenceAction.LIFT)),
            WriteLocation.NOWHERE,
            OperatorAction.WATCH,
        ),
        (
            replace(QUIET, mirror=STOPPED, pending_fence=PENDING, is_source_silent=True),
            WriteLocation.DESTINATION,
            OperatorAction.WATCH,
        ),
        (
            replace(QUIET, mirror=STOPPED, pending_fence=PENDING, is_source_silent=True, is_watched=True),
            WriteLocation.DESTINATION,
            OperatorAction.KEEP_WATCHER,
        ),
        (
            replace(QUIET, pending_fence=replace(PENDING, action=FenceAction.LIFT), is_watched=True),
            WriteLocation.NOWHERE,
            OperatorAction.KEEP_WATCHER,
        ),
        *(
            (
                replace(QUIET, pending_fence=replace(PENDING, action=FenceAction.LIFT), is_fence_seen=seen),
                writes,
                action,
            )
            for seen, writes, action in (
                (True, WriteLocation.NOWHERE, OperatorAction.LIFT_FENCE),
                (False, WriteLocation.SOURCE, OperatorAction.NOTHING),
            )
        ),
        (
            replace(QUIET, mirror=STOPPED, pending_fence=replace(PENDING, applied_at_ms=2)),
            WriteLocation.DESTINATION,
            OperatorAction.PLAN_FAILBACK,
        ),
        (
            replace(QUIET, mirror=STOPPED, newest_run=ended(RunKind.FAILOVER, RunState.DONE)),
            WriteLocation.DESTINATION,
            OperatorAction.PLAN_FAILBACK,
        ),
        (
            replace(
                QUIET,
                mirror=STOPPED,
                pending_fence=replace(PENDING, applied_at_ms=2),
                newest_run=ended(RunKind.FAILBACK, RunState.ABORTED),
            ),
            WriteLocation.DESTINATION,
            OperatorAction.PLAN_FAILBACK,
        ),
        (
            replace(
                QUIET,
                mirror=replace(STOPPED, failback_run="m-failback-1"),
                newest_run=ended(RunKind.FAILOVER, RunState.DONE),
            ),
            WriteLocation.DESTINATION,
            OperatorAction.SHOW_HOME_MIRROR,
        ),
    ],
)
def test_without_an_open_run_the_record_of_the_last_failover_decides(
    situation: AccessSituation, writes: WriteLocation | None, action: OperatorAction
) -> None:
    access = decide_write_access(situation)
    assert (access.writes, access.action, access.run) == (writes, action, None)
    assert access.cluster == {WriteLocation.SOURCE: "east", WriteLocation.DESTINATION: "west"}.get(
        writes or WriteLocation.NOWHERE
    )


@pytest.mark.parametrize(
    ("home", "writes", "cluster"),
    [
        (WriteLocation.SOURCE, WriteLocation.DESTINATION, MIRROR.destination),
        (WriteLocation.DESTINATION, WriteLocation.SOURCE, MIRROR.source),
        (WriteLocation.NOWHERE, WriteLocation.NOWHERE, None),
        (None, None, None),
    ],
)
def test_a_failback_that_leads_home_writes_where_its_failover_says(
    home: WriteLocation | None, writes: WriteLocation | None, cluster: ClusterName | None
) -> None:
    """The reverse mirror's source is this one's destination. Its state may be unreadable."""
    back = open_run(RunKind.FAILBACK, RunMode.PLANNED, "catch_up")
    known = None if home is None else WriteAccess(writes=home, cluster=cluster, action=OperatorAction.WAIT, run=None)
    access = decide_write_access(replace(QUIET, newest_run=back, home=known))
    assert (access.writes, access.cluster) == (writes, cluster)


@pytest.mark.parametrize("action", [OperatorAction.ABORT_RUN, OperatorAction.RESUME_RUN])
def test_a_failback_whose_failover_home_cannot_go_on_is_not_to_be_resumed(action: OperatorAction) -> None:
    back = open_run(RunKind.FAILBACK, RunMode.PLANNED, "catch_up")
    home = WriteAccess(writes=WriteLocation.SOURCE, cluster=MIRROR.destination, action=action, run=None)
    access = decide_write_access(replace(QUIET, newest_run=back, home=home))
    is_stuck = action is OperatorAction.ABORT_RUN
    assert access.action is (OperatorAction.SHOW_WAY_HOME if is_stuck else OperatorAction.RESUME_RUN)

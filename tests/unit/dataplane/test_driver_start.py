"""Which mirrors `replicate` may not copy now, by their state alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.dataplane.driver import check_may_run
from mirror_core.model.errors import HeldByRun, Refused
from mirror_core.model.mirror import DesiredState
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Plan, RunKind, RunState, StepRecord, StepState
from mirror_core.state.state_records import State
from tests.support.cluster_names import LIFTING, LINK
from tests.support.mirror_views import MIRROR, RUN
from tests.support.sentences import format_sentence


def state(
    desired: DesiredState = DesiredState.STARTED, debt: PendingFence | None = None, kind: RunKind | None = None
) -> State:
    found = State()
    found.mirrors[MIRROR.name] = replace(MIRROR, desired=desired)
    if debt is not None:
        found.pending_fences[MIRROR.name] = debt
    if kind is not None:
        plan: Plan = replace(RUN.plan, kind=kind)
        found.runs[RUN.id] = replace(RUN, plan=plan, state=RunState.ABORTING)
    return found


def test_a_started_mirror_is_copied_also_while_a_failover_goes_on() -> None:
    check_may_run(state(), LINK)
    check_may_run(state(debt=replace(LIFTING, action=FenceAction.APPLY)), LINK)
    check_may_run(state(debt=LIFTING, kind=RunKind.FAILOVER), LINK)  # the abort is about to lift it


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (State(), "has been deleted"),
        (state(DesiredState.PAUSED), "mirror resume m"),
        (state(DesiredState.STOPPED), "mirror start m"),
        (state(debt=LIFTING), format_sentence("fence_of_run_given_up", "east")),
    ],
)
def test_others_are_refused_with_what_to_do(found: State, words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_may_run(found, LINK)


def test_nothing_is_copied_home_before_the_reverse_mirror_is_whole() -> None:
    found = state()
    found.mirrors[MIRROR.name] = replace(MIRROR, failback_run="f1", is_preparing=True)
    with pytest.raises(HeldByRun, match="failback f1 has not made all of mirror m"):
        check_may_run(found, LINK)


def test_a_failback_copies_by_itself() -> None:
    with pytest.raises(HeldByRun):
        check_may_run(state(kind=RunKind.FAILBACK), LINK)


@pytest.mark.parametrize("step", ["drain", "settle"])
def test_a_failover_that_has_the_data_plane_to_itself_copies_by_itself(step: str) -> None:
    """The lease that it has taken grows old within seconds: it alone keeps no supervisor away."""
    found = state(kind=RunKind.FAILOVER)
    found.steps[RUN.id, step] = StepRecord(run=RUN.id, step=step, state=StepState.STARTED, attempt=1, started_ms=1)
    with pytest.raises(HeldByRun):
        check_may_run(found, LINK)

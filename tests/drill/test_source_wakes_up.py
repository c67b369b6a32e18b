"""A source that hangs in the middle of a run and wakes up before the promotion, with writers that were never told."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from mirror_core.decide.steps import list_step_names
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunKind, RunMode, RunState, StepState
from tests.drill.live import Application, Kind, living, nothing_lost_unnamed
from tests.support.broker_faults import suspended
from tests.support.checked_threads import Work
from tests.support.data_plane_thread import beating, driving
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.pending_fences import debt_of
from tests.support.unplanned_runs import begin
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

HANGS_S = patience(6.0)
"""In each step of a planned run, unless that has failed before."""
PLANNED, UNPLANNED = list_step_names(RunKind.FAILOVER), list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)


def started(pair: Pair, folder: Path, ended: ExitStack) -> tuple[Mirrored, str, list[Application]]:
    """A mirror whose data plane is at work, and three applications at whose writes it has been for a while."""
    topic = app_topic(pair, 4)
    first, second, *others = (Partition(topic, index) for index in range(4))
    applications = [
        Application(pair.east, Kind.PLAIN, [first]),
        Application(pair.east, Kind.IDEMPOTENT, [second]),
        Application(pair.east, Kind.TRANSACTIONAL, others),
    ]
    mirrored = new_mirror(pair, folder, topic)
    ended.enter_context(living(pair.east, *applications))
    ended.enter_context(driving(mirrored))
    beating(mirrored, 2)
    mirror_commands.run_sync(mirrored.link)  # stages the applications' rights
    more_of(applications)
    return mirrored, topic, applications


def more_of(applications: list[Application]) -> None:
    """Each is acknowledged something."""
    before = [len(one.acked) for one in applications]
    wait_until(
        lambda: all(len(one.acked) > count for one, count in zip(applications, before, strict=True)),
        timeout_s=TIMEOUT_S,
        why="all write",
    )


def refused_for_good(mirrored: Mirrored, applications: list[Application]) -> None:
    """All go on, none is let in, and nobody was acknowledged anything behind the fence."""
    before = [one.refused for one in applications]
    wait_until(
        lambda: all(one.refused > count for one, count in zip(applications, before, strict=True)),
        timeout_s=TIMEOUT_S,
        why="all are refused",
    )
    ends = debt_of(mirrored).log_ends.to_mapping()
    for one in applications:
        assert not [place for place in one.acked if place[1] >= ends.get(place[0], Offset(0))], f"{one.kind}: {ends}"


@pytest.mark.parametrize(
    ("before", "last"),
    [((), "settle"), ((), "stand"), ((), "final_offsets"), (("prove", "fence", "drain"), "settle")],
    ids=["settled", "stood", "offsets", "drained"],
)
def test_a_source_that_wakes_up_in_an_unplanned_run_is_fenced_when_the_other_side_is_opened(
    pair: Pair, tmp_path: Path, before: tuple[str, ...], last: str
) -> None:
    with ExitStack() as ended, ExitStack() as harmed:
        mirrored, topic, applications = started(pair, tmp_path, ended)
        failover = mirrored.failover
        if before:
            planned = begin(failover, RunMode.PLANNED)
            for name in before:
                failover.run_step(planned.id, name)
        harmed.enter_context(suspended(pair.east))
        run = begin(failover)
        for name in UNPLANNED[: UNPLANNED.index(last) + 1]:
            failover.run_step(run.id, name)
        harmed.close()
        if not before:
            more_of(applications)
        for name in UNPLANNED[UNPLANNED.index(last) + 1 : UNPLANNED.index("promote") + 1]:
            failover.run_step(run.id, name)

        assert debt_of(mirrored).applied_at_ms, "applications may write on both sides"
        refused_for_good(mirrored, applications)
        named = nothing_lost_unnamed(mirrored, applications)
        assert (named > 0) is not bool(before), f"{named} acknowledged records are named as missing"
        assert not denied(pair.west, topic)
        assert failover.drive(run.id).state is RunState.DONE
        assert denied(pair.east, topic)


def test_a_planned_run_goes_on_when_its_source_wakes_up_again(pair: Pair, tmp_path: Path) -> None:
    """It hangs in each of the steps up to the promotion, which no longer waits for it."""
    with ExitStack() as ended:
        mirrored, topic, applications = started(pair, tmp_path, ended)
        failover = mirrored.failover
        run = begin(failover, RunMode.PLANNED)
        for name in PLANNED[: PLANNED.index("promote")]:
            said = hangs_in(mirrored, run.id, name)
            print(f"{name}: {said or 'went through'}")
            assert not said or "east" in said, "it says which side does not answer"
            assert "abort this run" not in said, "a resume is enough"
            if name == "fence":
                assert "resume the run when east answers" in said
            failover.run_step(run.id, name)
        with suspended(pair.east):
            failover.run_step(run.id, "promote")
        refused_for_good(mirrored, applications)
        assert nothing_lost_unnamed(mirrored, applications) == 0
        assert not denied(pair.west, topic)
        assert failover.drive(run.id).state is RunState.DONE
        assert denied(pair.east, topic)


def hangs_in(mirrored: Mirrored, run: str, name: str) -> str:
    """The source hangs while the step is at work, and wakes up; what the step failed with, if it has."""
    failed = list[str]()

    def take() -> None:
        try:
            mirrored.failover.run_step(run, name)
        except MirrorError as error:
            failed.append(str(error))

    def begun() -> bool:
        found = mirrored.state.steps.get((run, name))
        return bool(failed) or (found is not None and found.state is not StepState.DONE) or not step.alive

    step = Work(take, name)
    with suspended(mirrored.pair.east):
        step.start()
        wait_until(begun, timeout_s=TIMEOUT_S, why=f"{name} has begun")
        step.wait(HANGS_S)
    step.join(TIMEOUT_S)
    return "".join(failed)

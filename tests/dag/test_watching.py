"""When a data plane counts as well, ill, or stopped on purpose. The clock is given, so nothing waits here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mirror_core.model.mirror import Desired, Lease, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Mode, Plan, Run, RunKind, RunState
from mirror_core.state.records import State

if TYPE_CHECKING:
    from mirrorbook_airflow.watching import DataPlaneTrigger

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

NAME = MirrorName("m1")
NOW_MS = 1_000_000


def state_of(desired: Desired = Desired.STARTED, *, beat_ms: int | None = None, released: bool = False) -> State:
    state = State()
    state.mirrors[NAME] = Mirror(
        name=NAME,
        source=ClusterName("east"),
        destination=ClusterName("west"),
        source_id="a",
        destination_id="b",
        topics=(".*",),
        producer_id=1 << 62,
        desired=desired,
        created_ms=0,
    )
    if beat_ms is not None:
        state.leases[NAME] = Lease(
            mirror=NAME, owner="o", generation=1, beat_ms=beat_ms, writers_until_ms=0, released=released
        )
    return state


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (state_of(), None),
        (state_of(Desired.PAUSED), "the mirror is paused"),
        (state_of(Desired.STOPPED), "the mirror is stopped"),
        (State(), "the mirror was deleted"),
    ],
)
def test_watching_ends_when_the_mirror_is_not_meant_to_run(state: State, reason: str | None) -> None:
    from mirrorbook_airflow.watching import ended

    assert ended(state, NAME) == reason


def test_the_newest_heartbeat_is_the_sign_of_life() -> None:
    from mirrorbook_airflow.watching import last_sign_ms

    assert last_sign_ms(state_of(beat_ms=NOW_MS - 500), NAME, NOW_MS) == NOW_MS - 500
    assert last_sign_ms(state_of(), NAME, NOW_MS) == 0
    assert last_sign_ms(state_of(beat_ms=NOW_MS, released=True), NAME, NOW_MS) == 0


def test_a_run_that_holds_the_mirror_is_no_illness() -> None:
    from mirrorbook_airflow.watching import last_sign_ms

    plan = Plan(kind=RunKind.FAILOVER, mirror=NAME, mode=Mode.PLANNED, steps=(), bound=())
    run = Run(
        id="r",
        plan=plan,
        plan_hash=plan.hash,
        state=RunState.RUNNING,
        started_by="",
        started_ms=0,
        desired=Desired.STARTED,
        conducted_by="",
    )
    state = state_of(beat_ms=0)
    state.runs["r"] = run

    assert last_sign_ms(state, NAME, NOW_MS) == NOW_MS
    state.runs["r"] = replace(run, ended_ms=1)
    assert last_sign_ms(state, NAME, NOW_MS) == 0


def test_the_trigger_survives_its_serialization() -> None:
    from importlib import import_module

    from mirrorbook_airflow.watching import DataPlaneTrigger

    trigger = DataPlaneTrigger("m1", "west", "/x.yaml", "/home", ["--runner", "local"], 90)

    path, fields = trigger.serialize()
    module, _, name = path.rpartition(".")
    again: DataPlaneTrigger = getattr(import_module(module), name)(**fields)

    assert again.serialize() == (path, fields)

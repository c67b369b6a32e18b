"""When a data plane counts as well, ill, or stopped on purpose. The clock is given, so nothing waits here."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mirror_core.model import timing
from mirror_core.model.mirror import DesiredState, Lease, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Plan, RunKind, RunMode
from mirror_core.state.state_records import State
from tests.support.memory_state import run_of

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent
    from mirrorbook_airflow.data_plane_trigger import DataPlaneTrigger

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

NAME = MirrorName("m1")
NOW_MS = 1_000_000
HOURS_MS = 7_200_000


def state_of(
    desired: DesiredState = DesiredState.STARTED, *, beat_ms: int | None = None, released: bool = False
) -> State:
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
            mirror=NAME, owner="o", generation=1, heartbeat_ms=beat_ms, writers_until_ms=0, released=released
        )
    return state


def owing(state: State) -> State:
    """The same, after a failover whose source is owed its fence."""
    state.pending_fences[NAME] = PendingFence(
        mirror=NAME, cluster=ClusterName("east"), action=FenceAction.APPLY, run="r", since_ms=0
    )
    return state


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (state_of(), None),
        (state_of(DesiredState.PAUSED), None),
        (state_of(DesiredState.STOPPED), "the mirror is stopped"),
        (owing(state_of(DesiredState.STOPPED)), None),
        (State(), "the mirror was deleted"),
    ],
)
def test_watching_ends_when_the_mirror_is_not_meant_to_run(state: State, reason: str | None) -> None:
    from mirrorbook_airflow.data_plane_trigger import explain_watch_end

    assert explain_watch_end(state, NAME) == reason


def test_the_newest_heartbeat_is_the_sign_of_life() -> None:
    from mirrorbook_airflow.data_plane_trigger import find_last_heartbeat_ms

    assert find_last_heartbeat_ms(state_of(beat_ms=NOW_MS - 500), NAME) == NOW_MS - 500
    assert find_last_heartbeat_ms(state_of(), NAME) == 0
    assert find_last_heartbeat_ms(state_of(beat_ms=NOW_MS, released=True), NAME) == 0


def test_a_run_that_holds_the_mirror_and_a_pause_are_no_illness() -> None:
    from mirrorbook_airflow.data_plane_trigger import is_expected_absent

    plan = Plan(kind=RunKind.FAILOVER, mirror=NAME, mode=RunMode.PLANNED, steps=(), bound_facts=())
    run = run_of("r", plan)
    state = state_of(beat_ms=0)
    state.runs["r"] = run

    assert is_expected_absent(state, NAME)
    state.runs["r"] = replace(run, ended_ms=1)
    assert not is_expected_absent(state, NAME)
    assert is_expected_absent(state_of(DesiredState.PAUSED), NAME)
    assert is_expected_absent(owing(state_of(DesiredState.STOPPED)), NAME)


@pytest.mark.parametrize(("comes_back", "status"), [(True, "ended"), (False, "unhealthy")])
def test_after_a_pause_the_data_plane_is_waited_for_as_at_its_start(
    comes_back: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from mirrorbook_airflow import data_plane_trigger

    clock_s, resumed_s, back_s, stopped_s = 0.0, 1_000.0, 1_080.0, 2_000.0

    def look() -> State:
        if clock_s < resumed_s:
            return state_of(DesiredState.PAUSED)
        if clock_s > stopped_s:
            return state_of(DesiredState.STOPPED)
        return state_of(beat_ms=round(clock_s * 1000) if comes_back and clock_s > back_s else 0)

    async def pass_by(seconds: float) -> None:
        nonlocal clock_s
        clock_s += seconds

    async def watched() -> TriggerEvent:
        trigger = data_plane_trigger.DataPlaneTrigger("m1", "west", 90)
        monkeypatch.setattr(trigger, "_read_state", look)
        return await anext(trigger.run())

    monkeypatch.setattr(timing, "read_steady_s", lambda: clock_s)
    monkeypatch.setattr("mirrorbook_airflow.data_plane_trigger.asyncio.sleep", pass_by)
    fired = asyncio.run(watched()).payload
    assert fired["status"] == status
    assert clock_s > resumed_s
    if status == "unhealthy":
        assert {name: fired[name] for name in ("source", "destination", "seen_ms")} == {
            "source": "east",
            "destination": "west",
            "seen_ms": 0,
        }


@pytest.mark.parametrize("jump_s", [7_200, -7_200])
def test_a_clock_that_jumps_ends_no_data_plane_that_lives_and_hides_no_dead_one(
    jump_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from mirrorbook_airflow import data_plane_trigger

    clock_s, jumped_s, died_s = 0.0, 500.0, 1_000.0

    def look() -> State:
        return state_of(beat_ms=round(min(clock_s, died_s) * 1000))

    async def pass_by(seconds: float) -> None:
        nonlocal clock_s
        clock_s += seconds

    async def watched() -> TriggerEvent:
        trigger = data_plane_trigger.DataPlaneTrigger("m1", "west", 90)
        monkeypatch.setattr(trigger, "_read_state", look)
        return await anext(trigger.run())

    monkeypatch.setattr(timing, "read_steady_s", lambda: clock_s)
    monkeypatch.setattr(time, "time_ns", lambda: int((clock_s + (jump_s if clock_s > jumped_s else 0)) * 1e9))
    monkeypatch.setattr("mirrorbook_airflow.data_plane_trigger.asyncio.sleep", pass_by)
    assert asyncio.run(watched()).payload["status"] == "unhealthy"
    assert died_s + 10 < clock_s <= died_s + 20


@pytest.mark.parametrize("owner_ahead_s", [0, 7_200, -7_200])
def test_a_data_plane_is_alive_as_long_as_its_sign_of_life_changes_whatever_its_clock_says(
    owner_ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from mirrorbook_airflow import data_plane_trigger

    start_s, died_s = 100_000.0, 101_000.0
    clock_s = start_s

    def look() -> State:
        return state_of(beat_ms=round((min(clock_s, died_s) + owner_ahead_s) * 1000))

    async def pass_by(seconds: float) -> None:
        nonlocal clock_s
        clock_s += seconds

    async def watched() -> TriggerEvent:
        trigger = data_plane_trigger.DataPlaneTrigger("m1", "west", 90)
        monkeypatch.setattr(trigger, "_read_state", look)
        return await anext(trigger.run())

    monkeypatch.setattr(timing, "read_steady_s", lambda: clock_s)
    monkeypatch.setattr("mirrorbook_airflow.data_plane_trigger.asyncio.sleep", pass_by)
    assert asyncio.run(watched()).payload["status"] == "unhealthy"
    assert died_s + 10 < clock_s <= died_s + 20


def test_behind_a_failover_it_is_watched_until_nothing_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What copied keeps the old source fenced, for as long as that lasts."""
    import asyncio

    from mirrorbook_airflow import data_plane_trigger

    clock_s, failed_over_s, home_s, looks = 0.0, 100.0, 1e6, list[float]()

    def look() -> State:
        looks.append(clock_s)
        if clock_s < failed_over_s:
            return state_of(beat_ms=round(clock_s * 1000))
        return owing(state_of(DesiredState.STOPPED)) if clock_s < home_s else state_of(DesiredState.STOPPED)

    async def pass_by(seconds: float) -> None:
        nonlocal clock_s
        clock_s += 5_000 if clock_s > failed_over_s else seconds

    async def watched() -> TriggerEvent:
        trigger = data_plane_trigger.DataPlaneTrigger("m1", "west", 90)
        monkeypatch.setattr(trigger, "_read_state", look)
        return await anext(trigger.run())

    monkeypatch.setattr(timing, "read_steady_s", lambda: clock_s)
    monkeypatch.setattr("mirrorbook_airflow.data_plane_trigger.asyncio.sleep", pass_by)
    assert asyncio.run(watched()).payload == {"status": "ended", "reason": "the mirror is stopped"}
    assert looks[-1] >= home_s
    assert len([at for at in looks if failed_over_s < at < home_s]) > 100


def test_how_a_watch_ends_is_said_with_the_command_that_starts_a_data_plane(
    airflow_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
    from mirrorbook_airflow.replicate_tasks import WatchDataPlane

    link = SimpleNamespace(mirror=state_of().mirrors[NAME], destination=SimpleNamespace(name=ClusterName("west")))
    monkeypatch.setattr("mirrorbook_airflow.replicate_tasks.find_mirror", lambda name: (link, state_of()))
    context: Any = {"params": {"patience_s": 90}, "ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    for name in (NAME, f"{NAME}-back"):
        task = WatchDataPlane(task_id="watch", mirror=name)
        with pytest.raises(TaskDeferred):
            task.execute(context)
        assert task.finish(context, {"status": "ended", "reason": "the mirror is stopped"}) == "the mirror is stopped"
        with pytest.raises(AirflowFailException, match=f"no heartbeat for 11 s.*mirrorbook supervise {NAME}$"):
            task.finish(context, {"status": "unhealthy", "reason": "no heartbeat for 11 s"})


def test_the_trigger_survives_its_serialization() -> None:
    from importlib import import_module

    from mirrorbook_airflow.data_plane_trigger import DataPlaneTrigger

    trigger = DataPlaneTrigger("m1", "west", 90)

    path, fields = trigger.serialize()
    module, _, name = path.rpartition(".")
    again: DataPlaneTrigger = getattr(import_module(module), name)(**fields)

    assert again.serialize() == (path, fields)


class Incident:
    """The task behind a watch that has failed, and what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

        self.begun: list[Any] = []
        monkeypatch.setattr(TriggerDagRunOperator, "execute", lambda task, context: self.begun.append(task.conf))

    def told(self, conf: dict[str, object], found: dict[str, object] | None) -> list[Any]:
        """Of a run with this configuration, whose watch has left this; the events."""
        from airflow.sdk.execution_time.context import OutletEventAccessors
        from mirrorbook_airflow.asset_events import UNHEALTHY_ALIAS
        from mirrorbook_airflow.replicate_tasks import INCIDENT_KEY, WatchAgain

        events = OutletEventAccessors()
        context: Any = {
            "ti": SimpleNamespace(
                xcom_pull=lambda task_ids, key: found if key == INCIDENT_KEY else None,
                get_dr_count=lambda dag_id, run_ids, states: 0,
            ),
            "dag_run": SimpleNamespace(dag_id="mirror_replicate", run_id="r", conf=conf),
            "params": {"patience_s": 90},
            "outlet_events": events,
        }
        WatchAgain(task_id="watch_again", mirror=NAME).execute(context)
        return [(event.dest_asset_key.uri, event.extra) for event in events[UNHEALTHY_ALIAS].asset_alias_events]


def test_an_incident_is_told_of_once_and_the_next_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow import replicate_tasks

    incident = Incident(monkeypatch)
    monkeypatch.setattr(replicate_tasks, "now_ms", lambda: NOW_MS)
    found = {"reason": "no heartbeat", "seen_ms": NOW_MS - 9000, "source": "east", "destination": "west"}
    wanted = (f"mirrorbook://{NAME}/unhealthy", {"mirror": NAME, **found, "at_ms": NOW_MS})
    assert incident.told({"mirror": NAME}, {**found, "lived": True}) == [wanted]
    after = incident.begun[-1]
    assert after == {**after, "incident": NOW_MS, "patience_s": 180}
    monkeypatch.setattr(replicate_tasks, "now_ms", lambda: NOW_MS + 100_000)
    later = {**found, "seen_ms": NOW_MS + HOURS_MS, "lived": False}
    assert incident.told(after, later) == [], "nothing has lived since; its clock was ahead"
    assert incident.told(after, None) == [], "the destination has not answered"
    assert incident.begun[-1]["incident"] == NOW_MS
    # The data plane's clock is hours behind.
    [(_, extra)] = incident.told(after, {**found, "seen_ms": NOW_MS - HOURS_MS, "lived": True})
    assert extra["at_ms"] == incident.begun[-1]["incident"] == NOW_MS + 100_000

"""Applications that are DAGs: events of the mirror's assets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mirror_core.decide.steps import list_step_names
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import RunKind, RunMode, StepRecord, StepState
from mirror_core.runbook.set_failover import SetFailover
from mirror_core.state.state_records import State
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import Pair, produce
from tests.support.mirrored_topics import new_mirror

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]  # Airflow's own warnings


def test_the_switch_emits_an_asset_event(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk.execution_time.context import OutletEventAccessors
    from mirrorbook_airflow import runbook
    from mirrorbook_airflow.asset_events import ACTIVE_ALIAS, FENCED_ALIAS
    from mirrorbook_airflow.runbook import AnnounceStep

    topic = app_topic(pair)
    produce(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    failover = mirrored.failover
    run = failover.begin(failover.plan(RunMode.PLANNED).hash).id
    order = list_step_names(RunKind.FAILOVER)
    for name in order[: order.index("switch")]:
        failover.run_step(run, name)
    monkeypatch.setattr(runbook, "find_mirror", lambda name: (mirrored.link, mirrored.state))
    monkeypatch.setattr(runbook, "make_services", lambda link, step, master: mirrored.services)
    monkeypatch.setattr(SetFailover, "refuse_superseded", lambda self, run_id: None)  # this run was begun by the test

    step = AnnounceStep(
        task_id="switch",
        step="switch",
        steps=("switch",),
        mirror=mirrored.name,
        kind=RunKind.FAILOVER,
        begin=EmptyOperator(task_id="begin"),
    )
    outlets = OutletEventAccessors()
    context: Any = {
        "ti": SimpleNamespace(xcom_pull=lambda task_ids: run, xcom_push=lambda key, value: None),
        "dag_run": SimpleNamespace(dag_id="switching", run_id="r1"),
        "params": {"master": "local[*]"},
        "outlet_events": outlets,
    }
    step.execute(context)

    steps = mirrored.state.steps
    of_all = {"mirror": mirrored.name, "run": run}
    fenced = {**of_all, "cluster": "east", "at_ms": steps[run, "fence"].ended_ms}
    switched = {**of_all, "active": "west", "at_ms": steps[run, "switch"].ended_ms}
    for kind, asset, wanted in ((FENCED_ALIAS, "fenced", fenced), (ACTIVE_ALIAS, "active", switched)):
        emitted = [(event.dest_asset_key.uri, event.extra) for event in outlets[kind].asset_alias_events]
        assert emitted == [(f"mirrorbook://{mirrored.name}/{asset}", wanted)]


class Told:
    """A link, and what a task would emit."""

    def __init__(self, **ended_ms: int) -> None:
        from airflow.sdk.execution_time.context import OutletEventAccessors

        self.events = OutletEventAccessors()
        self.context: Any = {"outlet_events": self.events}
        mirror = SimpleNamespace(name=MirrorName("m-back"), source=ClusterName("west"), destination=ClusterName("east"))
        self.link: Any = SimpleNamespace(mirror=mirror)
        self.state = State()
        for step, at_ms in ended_ms.items():
            self.state.steps["r1", step] = StepRecord(
                run="r1", step=step, state=StepState.DONE, attempt=1, started_ms=1, ended_ms=at_ms
            )


def test_a_source_that_was_given_up_was_not_fenced() -> None:
    from mirrorbook_airflow.asset_events import ACTIVE_ALIAS, emit_switched

    told = Told(switch=5)
    emit_switched(told.link, told.state, "r1", told.context)
    [event] = told.events[ACTIVE_ALIAS].asset_alias_events
    assert event.dest_asset_key.uri == "mirrorbook://m/active"
    assert event.extra == {"mirror": "m", "active": "east", "run": "r1", "at_ms": 5}


def test_the_end_of_a_failback_is_told_of(dag_bag: DagBag) -> None:
    from mirrorbook_airflow.asset_events import HOME_ALIAS, emit_home
    from mirrorbook_airflow.runbook import AnnounceStep

    told = Told(reprotect=7)
    told.link.mirror.name = MirrorName("m")
    emit_home(told.link, told.state, "r1", told.context)
    [event] = told.events[HOME_ALIAS].asset_alias_events
    assert event.dest_asset_key.uri == "mirrorbook://m/home"
    assert event.extra == {"mirror": "m", "active": "west", "run": "r1", "at_ms": 7}
    task = dag_bag.dags["mirror_failback"].get_task("reprotect")
    assert isinstance(task, AnnounceStep)
    assert task.outlets == [HOME_ALIAS]

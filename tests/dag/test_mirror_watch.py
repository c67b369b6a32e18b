"""DAG `mirror_watch`, run to its end in this process: an old source is fenced, and who writes there makes it red."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.model.names import MirrorName
from mirror_core.model.run import RunMode, RunState
from mirror_core.state.state_topic import read_state
from mirror_core.state.watcher_heartbeat import find_watcher_status
from tests.dag.airflow_home import add_connection, connection_of, run_dag
from tests.support.broker_faults import suspended
from tests.support.failover_runs import app_topic, denied
from tests.support.kafka_clients import TIMEOUT_S, Pair, produce
from tests.support.mirrored_topics import Mirrored
from tests.support.replicate_process import supervising
from tests.support.unplanned_runs import begin
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def mirrored(dag_bag: DagBag, pair: Pair, airflow_database: None, tmp_path: Path) -> Mirrored:
    """A mirror whose source hung when it was failed over, and answers again."""
    add_connection("east", connection_of(pair.east))
    add_connection("west", connection_of(pair.west))
    topic, name = app_topic(pair), MirrorName("m-" + secrets.token_hex(4))
    produce(pair.east, topic, 20)
    params = {"mirror": name, "source": "east", "destination": "west", "topics": [topic]}
    assert run_dag(dag_bag.dags["mirror_create"], params).state == "success"
    made = Mirrored(pair, load_config(pair.config_path), name, tmp_path)
    made.copy()
    with suspended(pair.east):
        run = begin(made.failover, RunMode.UNPLANNED)
        assert made.failover.drive(run.id).state is RunState.DONE
    return made


def test_behind_a_failover_the_supervisor_keeps_the_old_source_fenced(
    pair: Pair, mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No run of DAG `mirror_watch`: it may be paused. `mirror_replicate` watches on."""
    from airflow.sdk.exceptions import TaskDeferred
    from mirrorbook_airflow.data_plane_trigger import DataPlaneTrigger, explain_watch_end
    from mirrorbook_airflow.replicate_tasks import WatchDataPlane

    monkeypatch.setenv("AIRFLOW_VAR_MIRRORBOOK_CLUSTERS", "east,west")
    for cluster in (pair.east, pair.west):
        monkeypatch.setenv(f"AIRFLOW_CONN_{cluster.name.upper()}", json.dumps(connection_of(cluster)))
    [topic] = mirrored.link.mirror.topics
    context: Any = {"params": {"patience_s": 90}, "ti": SimpleNamespace(xcom_push=lambda key, value: None)}
    with supervising(pair.config_path, mirrored.name, tmp_path / "data-plane"):
        with pytest.raises(TaskDeferred) as deferred:
            WatchDataPlane(task_id="watch", mirror=mirrored.name).execute(context)
        trigger = deferred.value.trigger
        assert isinstance(trigger, DataPlaneTrigger)
        wait_until(
            lambda: mirrored.state.pending_fences[mirrored.name].applied_at_ms,
            timeout_s=TIMEOUT_S,
            why="its fence is up",
        )
        assert denied(pair.east, topic)
        assert explain_watch_end(trigger._read_state(), mirrored.name) is None


@pytest.mark.slow
def test_an_old_source_is_fenced_and_a_writer_behind_the_fence_makes_it_red(
    dag_bag: DagBag, pair: Pair, mirrored: Mirrored
) -> None:
    [topic] = mirrored.link.mirror.topics
    dag = dag_bag.dags["mirror_watch"]

    # Whether the run is red is up to mirrors of this file's earlier tests.
    run = run_dag(dag, {"mirrors": []})

    assert {task.task_id: task.state for task in run.get_task_instances()}["continue_watch"] == "skipped"
    state = read_state(mirrored.link.destination)
    assert state.pending_fences[mirrored.name].applied_at_ms is not None
    assert str(find_watcher_status(state, mirrored.name, None)).startswith("DAG mirror_watch on ")
    assert denied(pair.east, topic)
    assert run_dag(dag, {"mirrors": [mirrored.name]}).state == "success"
    produce(pair.east, topic, 1, user="admin")
    assert run_dag(dag, {"mirrors": [mirrored.name]}).state == "failed"

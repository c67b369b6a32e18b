"""A DAG of one mirror, made by the factory, in a running Airflow against real brokers: over, and home again."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from demo.airflow import AirflowFailed
from mirror_core.model.run import RunKind, RunState
from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support import celery_airflow
from tests.support.celery_airflow import make_airflow
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

RUN_S = 600
FILE = """
from airflow.sdk import DAG
from mirrorbook_airflow import MirrorRunbook, mirrorbook_dags

mirrorbook_dags("failover", "failback", "replicate", "sync", "control", mirrors=[{name!r}],
               approvers=["admin", {name!r}])
with DAG("team_failover", schedule=None, is_paused_upon_creation=False, default_args={{"trigger_rule": "all_done"}}):
    MirrorRunbook("orders", mirror="{{{{ var.value.our_mirror }}}}", params={{"pause": False}})
"""


def test_a_mirrors_own_dags_move_it_and_bring_it_home_and_move_no_other(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a user of role viewer with rights on these DAGs only, who sees no other mirror on the page either."""
    topic = new_topic(pair.east, partitions=2, prefix="orders-")
    produce(pair.east, topic, 500)
    mirror = new_mirror(pair, tmp_path / "evidence", topic)
    mirror.copy()
    other = new_mirror(pair, tmp_path / "evidence", new_topic(pair.east)).name
    over, home = f"mirror_failover.{mirror.name}", f"mirror_failback.{mirror.name}"
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "ours.py").write_text(FILE.format(name=str(mirror.name)), encoding="utf-8")
    plugins = tmp_path / "airflow" / "plugins"
    plugins.mkdir(parents=True)
    (plugins / "rights.py").write_text("from tests.support.own_dags_auth import restrict_viewers\nrestrict_viewers()\n")
    monkeypatch.setattr(celery_airflow, "REPOSITORY", tmp_path)
    airflow = make_airflow(
        tmp_path / "airflow",
        {
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"admin:admin,other:admin,{mirror.name}:viewer",
            "AIRFLOW__MIRRORBOOK__EXECUTORS_CONFIG": str(pair.config_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    airflow.start()

    def await_end(dag: str, run: str) -> str:
        ended = ("success", "failed")
        wait_until(lambda: airflow.run_state(dag, run) in ended, timeout_s=RUN_S, why=f"run {run} of {dag} has ended")
        return airflow.run_state(dag, run)

    def approve(dag: str, run: str, *tasks: str) -> None:
        for task in tasks:
            airflow.await_question(dag, run, task, RUN_S)
            airflow.answer(dag, run, task, "Approve")

    def get_page(path: str, user: str) -> httpx.Response:
        login = {"username": user, "password": airflow.password(user)}
        token = httpx.post(f"{airflow.url}/auth/token", json=login, timeout=RUN_S).json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{airflow.url}/mirrorbook{path}", headers=headers, timeout=RUN_S)

    def is_listed(name: str, user: str) -> bool:
        return f'/mirrors/{name}"' in get_page("/api/mirrors", user).json()["html"]

    try:
        airflow.wait_healthy()
        for cluster in (pair.east, pair.west):
            airflow.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        airflow.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        airflow.call("POST", "/variables", {"key": "our_mirror", "value": str(mirror.name)})
        airflow.unpause(over)

        for dag, wrong in ((over, "bills"), (f"mirror_control.{mirror.name}", "bills")):
            with pytest.raises(AirflowFailed, match="400"):
                airflow.trigger(dag, {"mirror": wrong, "action": "pause"})
        with pytest.raises(AirflowFailed, match="400"):
            airflow.trigger(f"mirror_sync.{mirror.name}", {"mirrors": ["bills"]})

        run = airflow.trigger("team_failover", {})
        airflow.await_question("team_failover", run, "orders.approve", RUN_S)
        assert f"Fail over mirror {mirror.name}?" in airflow.question("team_failover", run, "orders.approve")[0]
        airflow.answer("team_failover", run, "orders.approve", "Reject")
        assert await_end("team_failover", run) == "failed"
        assert airflow.tasks("team_failover", run)["orders.cut_over"] == "upstream_failed", "whatever the DAG's rule is"
        assert not mirror.state.runs

        wait_until(lambda: is_listed(other, "admin"), timeout_s=RUN_S, why="the page knows both mirrors")
        assert is_listed(mirror.name, str(mirror.name))
        assert not is_listed(other, str(mirror.name))
        assert get_page(f"/api/mirrors/{other}", str(mirror.name)).status_code == 403
        button = f'href="/dags/{over}"'
        wait_until(
            lambda: button in get_page(f"/mirrors/{mirror.name}", str(mirror.name)).text,
            timeout_s=RUN_S,
            why="its button leads to its own DAG",
        )
        with airflow.signed_in(str(mirror.name)):
            with pytest.raises(AirflowFailed, match="403"):
                airflow.trigger("team_failover", {})
            run = airflow.trigger(over, {})
            airflow.await_question(over, run, "approve", RUN_S)
        with airflow.signed_in("other"), pytest.raises(AirflowFailed, match="403"):
            airflow.answer(over, run, "approve", "Approve")
        with airflow.signed_in(str(mirror.name)):
            approve(over, run, "approve", "go_ahead")
        assert await_end(over, run) == "success", airflow.tasks(over, run)
        (moved,) = mirror.state.runs.values()
        assert moved.started_by.startswith(f"airflow {over}/{run}")
        produce(pair.west, topic, 50)

        run = airflow.trigger(home, {"patience_s": 10})
        approve(home, run, "approve", "home.approve", "home.go_ahead")
        assert await_end(home, run) == "success", airflow.tasks(home, run)
        watched = airflow.call("GET", f"/dags/mirror_replicate.{mirror.name}/dagRuns")["dag_runs"]
        assert {one["conf"]["mirror"] for one in watched} == {str(mirror.name), f"{mirror.name}-back"}
        ends = {one.plan.kind: one.state for one in mirror.state.runs.values() if one.plan.mirror == mirror.name}
        assert ends == {RunKind.FAILOVER: RunState.DONE, RunKind.FAILBACK: RunState.DONE}
        produce(pair.east, topic, 5)
        assert len(read_all(pair.east, topic)) >= 555
    finally:
        airflow.stop()

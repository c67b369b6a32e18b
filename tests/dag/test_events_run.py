"""The documentation's DAG that is scheduled by a proof, in a running Airflow against real brokers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirrorbook_tools.sandbox.credentials import CONTROL, DATA
from tests.support import celery_airflow
from tests.support.celery_airflow import make_airflow
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

RUN_S = 600
NOTICES = Path(__file__).parents[2] / "docs" / "operate" / "airflow-notices.md"


def test_a_dag_runs_when_its_mirror_was_proved_equal_and_not_after_a_comparison_that_proves_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 50)
    copied, empty = (new_mirror(pair, tmp_path / "evidence", one) for one in (topic, new_topic(pair.east)))
    for mirror in (copied, empty):
        mirror.copy()
    (tmp_path / "dags").mkdir()
    events = NOTICES.read_text(encoding="utf-8").partition("## Events")[2]
    [example] = re.findall(r"```python\n(.*?)```", events, re.DOTALL)
    for mirror in (copied, empty):
        (tmp_path / "dags" / f"{mirror.name}.py").write_text(
            f"{example.replace('orders', str(mirror.name))}\n"
            f"from mirrorbook_airflow import mirrorbook_dags\nmirrorbook_dags('parity', mirrors=['{mirror.name}'])\n",
            encoding="utf-8",
        )
    monkeypatch.setattr(celery_airflow, "REPOSITORY", tmp_path)
    airflow = make_airflow(tmp_path / "airflow")
    airflow.start()

    def list_states(dag: str) -> list[str]:
        return [run["state"] for run in airflow.call("GET", f"/dags/{dag}/dagRuns")["dag_runs"]]

    try:
        airflow.wait_healthy()
        for cluster in (pair.east, pair.west):
            airflow.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA))
        airflow.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        for mirror, ends in ((empty, "failed"), (copied, "success")):
            airflow.unpause(f"mirror_parity.{mirror.name}")  # it runs at once, for the hour before
            wait_until(
                lambda dag=f"mirror_parity.{mirror.name}", end=ends: end in list_states(dag),  # type: ignore[misc]
                timeout_s=RUN_S,
                why="it was compared",
            )
        load = f"load_{copied.name}"
        wait_until(lambda: list_states(load) == ["success"], timeout_s=RUN_S, why="the DAG has run")
        [run] = airflow.call("GET", f"/dags/{load}/dagRuns")["dag_runs"]
        told = airflow.log_of(load, run["dag_run_id"], "load")
        assert re.search(r"equal up to \d{13} in 1 partitions", told)
        assert list_states(f"load_{empty.name}") == []
    finally:
        airflow.stop()

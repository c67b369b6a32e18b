"""How many task instances Airflow runs that no person asked for."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from demo.airflow import Airflow
from tests.dag.airflow_home import connection_of
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

RUNS_PER_HOUR: Final = {"None": 0.0, "@hourly": 1.0, "@daily": 1 / 24, "@weekly": 1 / 168}
"""By schedule: another one is a KeyError."""
MIRRORS: Final = 20
MADE_MIRRORS: Final = 3
COUNTED_S: Final = 900
LOOK_INTERVAL_S: Final = 2
FILE: Final = """
from airflow.sdk import DAG
from mirrorbook_airflow import mirrorbook_dags

mirrorbook_dags("check", "parity", "watch", "receipts")
"""
"""All with a schedule but the weekly drill, which comes to 0.24 an hour for twenty mirrors."""
LOOK: Final = "SELECT dag_id || '.' || task_id, state FROM task_instance WHERE state IN ('running', 'deferred')"
COUNT: Final = """
SELECT run.dag_id, run.run_id, run.run_type, instance.task_id, sum(max(1, instance.try_number))
FROM task_instance instance JOIN dag_run run ON run.dag_id = instance.dag_id AND run.run_id = instance.run_id
GROUP BY run.dag_id, run.run_id, run.run_type, instance.task_id
"""
"""Each attempt takes a worker."""


def list_mapped_tasks(dag: DAG) -> set[str]:
    """Those with an instance for each mirror."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    return {task.task_id for task in dag.tasks if isinstance(task, MappedOperator)}


def test_by_their_schedules_dags_have_three_task_instances_a_mirror_and_hour(dag_bag: DagBag) -> None:
    per_hour = {
        name: RUNS_PER_HOUR[str(dag.schedule)] * (len(dag.tasks) + (MIRRORS - 1) * len(list_mapped_tasks(dag)))
        for name, dag in dag_bag.dags.items()
    }
    assert sum(per_hour.values()) <= 3 * MIRRORS, per_hour
    assert {name for name, count in per_hour.items() if count} == {
        *("mirror_check", "mirror_drill", "mirror_parity", "mirror_receipts", "mirror_watch")
    }


def ask(airflow: Airflow, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{airflow.folder / 'airflow.db'}?mode=ro", uri=True, timeout=60)) as database:
        return database.execute(query).fetchall()


@pytest.mark.cluster
@pytest.mark.drill
@pytest.mark.heavy
@pytest.mark.timed
def test_a_running_airflow_has_three_task_instances_a_mirror_and_hour_and_no_slot_is_held_by_a_wait(
    pair: Pair, tmp_path: Path, dag_bag: DagBag
) -> None:
    for _ in range(MADE_MIRRORS):
        topic = new_topic(pair.east)
        produce(pair.east, topic, 50)
        new_mirror(pair, tmp_path / "evidence", topic).copy()
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "scheduled.py").write_text(FILE, encoding="utf-8")
    known = {f"AIRFLOW_CONN_{side.name.upper()}": json.dumps(connection_of(side)) for side in (pair.east, pair.west)}
    defaults = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
    settings = {**known, **defaults, "AIRFLOW_VAR_MIRRORBOOK_CLUSTERS": "east,west"}
    airflow = Airflow(tmp_path / "airflow", dags=tmp_path / "dags", settings=settings)
    airflow.start()
    holders, waiting, looks = Counter[str](), Counter[str](), 0
    try:
        airflow.wait_healthy()
        end = time.monotonic() + COUNTED_S
        while time.monotonic() < end:
            found = ask(airflow, LOOK)
            holders.update(task for task, state in found if state == "running")
            waiting.update(task for task, state in found if state == "deferred")
            looks += 1
            time.sleep(LOOK_INTERVAL_S)
        counted = ask(airflow, COUNT)
    finally:
        airflow.stop()
    print(f"{looks} looks: held a slot {dict(holders)}, waited {dict(waiting)}")
    print(*counted, sep="\n")
    per_hour = defaultdict[str, float](float)
    for dag, run, kind, task, attempts in counted:
        share = attempts / MADE_MIRRORS * MIRRORS if task in list_mapped_tasks(dag_bag.dags[dag]) else attempts
        is_first = run == min(other for name, other, *_ in counted if name == dag)
        if kind != "scheduled":
            per_hour[dag] += share * 3600 / COUNTED_S
        elif is_first:
            per_hour[dag] += share * RUNS_PER_HOUR[str(dag_bag.dags[dag].schedule)]
    print(f"{sum(per_hour.values()) / MIRRORS:.2f} a mirror and hour: {dict(per_hour)}")
    assert per_hour.keys() == {"mirror_check", "mirror_parity", "mirror_receipts", "mirror_watch"}
    assert sum(per_hour.values()) <= 3 * MIRRORS, per_hour
    assert waiting["mirror_watch.watch"] > looks / 2
    assert holders["mirror_watch.watch"] < looks / 10, holders

"""How many task instances Airflow runs that no person asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

RUNS_PER_HOUR: Final = {"None": 0.0, "@hourly": 1.0, "@daily": 1 / 24, "@weekly": 1 / 168}
"""By schedule: another one is a KeyError."""
MIRRORS: Final = 20


def count_task_instances(dag: DAG, mirrors: int) -> int:
    """Of one run. A mapped task has one for each mirror."""
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    return sum(mirrors if isinstance(task, MappedOperator) else 1 for task in dag.tasks)


def test_by_their_schedules_dags_have_three_task_instances_a_mirror_and_hour(dag_bag: DagBag) -> None:
    per_hour = {
        name: RUNS_PER_HOUR[str(dag.schedule)] * count_task_instances(dag, MIRRORS)
        for name, dag in dag_bag.dags.items()
    }
    assert sum(per_hour.values()) <= 3 * MIRRORS, per_hour
    assert {name for name, count in per_hour.items() if count} == {
        *("mirror_check", "mirror_drill", "mirror_parity", "mirror_receipts", "mirror_watch")
    }

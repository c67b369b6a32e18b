"""Fail over several mirrors whose sources are dead, with one approval. Records that were not copied are lost.

Section `sets:` of `mirrors.yaml` names the set. The run promotes each mirror as soon as it can, even if others fail;
clear the failed task, and the remaining mirrors continue. A rejected or failed run is red.
However it ends, the log of `last_words` says of each mirror who can write where, and what to do next.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import notify_on_failure_or_deadline
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import set_param, spark_master_param
from mirrorbook_airflow.set_tasks import make_set_tasks

with DAG(
    "mirror_failover_set_unplanned",
    description="Fail over the mirrors of an application without their sources: what was not copied is lost",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MAX_ACTIVE_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT_TASK_DEFAULTS,
    **notify_on_failure_or_deadline(),
    params={
        "set": set_param("Name of the set of mirrors"),
        "master": spark_master_param(),
    },
) as dag:
    ends = make_set_tasks(
        "{{ params.set }}",
        "Fail over set {{ params.set }} without its sources? Records that were not copied will be lost.",
        mode="unplanned",
    )
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    [*ends] >> EmptyOperator(task_id="done")

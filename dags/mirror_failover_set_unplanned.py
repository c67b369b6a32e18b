"""Fail over several mirrors whose sources are dead, with one approval. Records that were not copied are lost.

Section `sets:` of `mirrors.yaml` names the set. The run promotes each mirror as soon as it can, even if others fail;
clear the failed task, and the remaining mirrors continue. A rejected or failed run is red.
However it ends, the log of `last_words` says of each mirror who can write where, and what to do next.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import when_red_or_late
from mirrorbook_airflow.operators import MANY_RUNS, URGENT
from mirrorbook_airflow.params import mirror_set, spark_master
from mirrorbook_airflow.set_tasks import set_phases

with DAG(
    "mirror_failover_set_unplanned",
    description="Fail over the mirrors of an application without their sources: what was not copied is lost",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MANY_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT,
    **when_red_or_late(),
    params={
        "set": mirror_set("Name of the set of mirrors"),
        "master": spark_master(),
    },
) as dag:
    ends = set_phases(
        "{{ params.set }}",
        "Fail over set {{ params.set }} without its sources? Records that were not copied will be lost.",
        mode="unplanned",
    )
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    [*ends] >> EmptyOperator(task_id="done")

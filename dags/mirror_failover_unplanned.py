"""Fail over without the source: promote what was copied, and fence the source when it comes back.

The plan says what may be lost; that grows with every second. If a planned run stopped because its source died, this one
continues it. A rejected or failed run is red. If a step before `promote` fails, the mirror resumes; after `promote`,
clear the failed task to continue.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import when_red_or_late
from mirrorbook_airflow.operators import MANY_RUNS, URGENT
from mirrorbook_airflow.params import mirror, spark_master
from mirrorbook_airflow.runbook import failover_phases

with DAG(
    "mirror_failover_unplanned",
    description="Fail over a mirror without its source: what was not copied is lost",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MANY_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT,
    **when_red_or_late(),
    params={"mirror": mirror("Name of the mirror whose source is dead"), "master": spark_master()},
) as dag:
    phases = failover_phases(
        "{{ params.mirror }}",
        "Fail over mirror {{ params.mirror }} without its source? Records that were not copied will be lost.",
        mode="unplanned",
    )
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    phases.last >> EmptyOperator(task_id="done")

"""Fail over without the source: promote what was copied, and fence the source when it comes back.

The plan says what may be lost; that grows with every second. If a planned run stopped because its source died, this one
continues it. A rejected or failed run is red. If a step before `promote` fails, the mirror resumes; after `promote`,
clear the failed task to continue.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import notify_on_failure_or_deadline
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import mirror_param, spark_master_param
from mirrorbook_airflow.runbook import make_failover_tasks

with DAG(
    "mirror_failover_unplanned",
    description="Fail over a mirror without its source: what was not copied is lost",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MAX_ACTIVE_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT_TASK_DEFAULTS,
    **notify_on_failure_or_deadline(),
    params={"mirror": mirror_param("Name of the mirror whose source is dead"), "master": spark_master_param()},
) as dag:
    phases = make_failover_tasks(
        "{{ params.mirror }}",
        "Fail over mirror {{ params.mirror }} without its source? Records that were not copied will be lost.",
        mode="unplanned",
    )
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    phases.last >> EmptyOperator(task_id="done")

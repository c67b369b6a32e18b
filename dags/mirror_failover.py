"""Move applications from a mirror's source to its destination, step by step, with one approval. Nothing is lost.

The source must answer; if it is dead, use mirror_failover_unplanned. A rejected or failed run is red. If a step before
`promote` fails, the run lifts the fence, unless the source has died; after `promote`, clear the failed task to go on.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import notify_on_failure_or_deadline
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import (
    gate_limit_param,
    leave_behind_param,
    mirror_param,
    pause_param,
    spark_master_param,
)
from mirrorbook_airflow.runbook import make_failover_tasks

with DAG(
    "mirror_failover",
    description="Fail over a mirror: compare, fence the source, copy the rest, promote the destination",
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
        "mirror": mirror_param("Name of the mirror to fail over"),
        "master": spark_master_param(),
        "pause": pause_param(),
        "gate_limit_s": gate_limit_param(),
        "leave_behind": leave_behind_param(),
    },
) as dag:
    phases = make_failover_tasks("{{ params.mirror }}", "Fail over mirror {{ params.mirror }}?")
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    phases.last >> EmptyOperator(task_id="done")

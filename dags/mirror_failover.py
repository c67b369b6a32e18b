"""Move applications from a mirror's source to its destination, step by step, with one approval. Nothing is lost.

The source must answer; if it is dead, use mirror_failover_unplanned. A rejected or failed run is red. If a step before
`promote` fails, the run lifts the fence, unless the source has died; after `promote`, clear the failed task to go on.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import when_red_or_late
from mirrorbook_airflow.operators import MANY_RUNS, URGENT
from mirrorbook_airflow.params import gate_limit, leave_behind, mirror, pause, spark_master
from mirrorbook_airflow.runbook import failover_phases

with DAG(
    "mirror_failover",
    description="Fail over a mirror: compare, fence the source, copy the rest, promote the destination",
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
        "mirror": mirror("Name of the mirror to fail over"),
        "master": spark_master(),
        "pause": pause(),
        "gate_limit_s": gate_limit(),
        "leave_behind": leave_behind(),
    },
) as dag:
    phases = failover_phases("{{ params.mirror }}", "Fail over mirror {{ params.mirror }}?")
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    phases.last >> EmptyOperator(task_id="done")

"""Move applications from a mirror's source to its destination, step by step, with one approval.

planned: the source lives, and nothing is lost. unplanned: it is given up for lost; the plan says what may be missing.
Steps of the other mode are skipped. A rejected or failed run is red. Until `promote`, a failure undoes the fence,
unless the source has died; from there on clear the failed task.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.params import failover_mode, mirror, spark_master
from mirrorbook_airflow.runbook import failover_phases

with DAG(
    "mirror_failover",
    description="Fail a mirror over: fence the source, drain, prove, promote the destination; or give a dead source up",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    tags=["mirrorbook", "runbook"],
    params={
        "mirror": mirror("Name of the mirror to fail over"),
        "mode": failover_mode(),
        "master": spark_master(),
    },
) as dag:
    phases = failover_phases(
        "{{ params.mirror }}", "Fail over mirror {{ params.mirror }}, {{ params.mode }}?", mode="{{ params.mode }}"
    )
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    phases.last >> EmptyOperator(task_id="done")

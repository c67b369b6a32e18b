"""Give a dead source up: promote its mirror with what was copied, and keep the source out when it comes back.

The plan says what may be lost; it widens with every second. Goes on from a planned run whose source has died. A
rejected or failed run is red. Until `promote`, a failure lets the mirror go on; from there on clear the failed task.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifying import when_red_or_late
from mirrorbook_airflow.operators import URGENT
from mirrorbook_airflow.params import mirror, spark_master
from mirrorbook_airflow.runbook import failover_phases

with DAG(
    "mirror_failover_unplanned",
    description="Fail a mirror over whose source is dead: what was not copied is lost",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
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

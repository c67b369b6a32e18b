"""Keep the old source of a failover fenced: from its first answer on, for as long as applications are away.

Red when somebody has to be called: records were accepted before the fence was up, a writer that no fence stops, or a
fence that cannot be put up, was taken away, or is pending while the source answers.

Each mirror with a fence that is pending or stands is looked at once, at the beginning; then each silent cluster
is waited for by one task, for all of its mirrors: a disaster of many takes no more slots than it has clusters.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param
from mirrorbook_airflow.debtors import CallForDebtors, KeepFenced, LookAtDebtors
from mirrorbook_airflow.notifying import when_red
from mirrorbook_airflow.operators import AT_ONCE, RETRIES

with DAG(
    "mirror_watch",
    description="Fence old sources when they come back, and keep them fenced",
    doc_md=__doc__,
    schedule=timedelta(minutes=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **when_red(),
    params={
        "mirrors": Param(
            [],
            type="array",
            items={"type": "string"},
            description_md="Mirrors to look after; empty: every mirror whose old source is or is to be fenced",
        )
    },
) as dag:
    look = LookAtDebtors(task_id="look")
    look >> CallForDebtors(task_id="call", look=look)
    each = KeepFenced.partial(
        task_id="watch", map_index_template="{{ task.mirrors | join(', ') }}", max_active_tis_per_dag=AT_ONCE, **RETRIES
    )
    each.expand(mirrors=look.output)

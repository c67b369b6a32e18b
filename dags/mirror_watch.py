"""Keep the old source of a failover fenced: from its first answer on, for as long as applications are away.

Red when somebody has to be called: records slipped in before the fence was up, a writer that no fence stops, or a fence
that cannot be put up, was taken away, or is pending while the source answers. A mirror that owes nothing has no task.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Param
from mirrorbook_airflow.notifying import when_red
from mirrorbook_airflow.operators import AT_ONCE, RETRIES, KeepFenced, ListDebtors

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
            [], type="array", items={"type": "string"}, description_md="Mirrors to look after; none: all that owe"
        )
    },
) as dag:
    mirrors = ListDebtors(task_id="mirrors")
    each = KeepFenced.partial(
        task_id="watch", map_index_template="{{ task.mirror }}", max_active_tis_per_dag=AT_ONCE, **RETRIES
    )
    each.expand(mirror=mirrors.output)

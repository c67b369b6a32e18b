"""Keep the old source of a failover fenced, from its first answer until applications have come home.

Red when a person has to act: the old source accepted records before its fence was up, a writer passes the fence, or the
fence cannot be put up, was removed, or is pending while the source answers; or nobody conducts a run while applications
can write nowhere.

Task `look` checks each mirror with a fence that is pending or stays, and each that a run holds. Then one task for each
silent cluster waits for its first answer, on behalf of all mirrors from there: a disaster takes no more task slots than
it has clusters.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG
from mirrorbook_airflow.fence_watch import MAP_INDEX, KeepSourceFenced, ProbeFencedSources, RaiseFenceAlarms
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import MAX_PARALLEL_TASKS, TASK_DEFAULTS
from mirrorbook_airflow.params import mirror_list_param

with DAG(
    "mirror_watch",
    description="Fence old sources when they come back, and keep them fenced",
    doc_md=__doc__,
    schedule=timedelta(minutes=1),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={
        "mirrors": mirror_list_param(
            "Mirrors to watch; empty: every mirror whose old source has a fence that is pending or stays, or "
            "that a run holds"
        )
    },
) as dag:
    probe = ProbeFencedSources(task_id="look")
    probe >> RaiseFenceAlarms(task_id="call", probe=probe)
    each = KeepSourceFenced.partial(
        task_id="watch", map_index_template=MAP_INDEX, max_active_tis_per_dag=MAX_PARALLEL_TASKS, **TASK_DEFAULTS
    )
    each.expand(mirrors=probe.output)

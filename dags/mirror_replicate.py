"""Keep a mirror's data plane running, and turn red when it does not run.

A small supervisor outside of Airflow restarts the data plane. This DAG starts the supervisor, and watches the heartbeat
in the mirror's state. To end a run, stop the mirror, not this DAG. After a failover the run lasts until the failback,
because the supervisor also keeps the old source fenced. Without a heartbeat for ten seconds the run turns red, and the
next run takes over.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS
from mirrorbook_airflow.params import data_plane_params, mirror_param
from mirrorbook_airflow.replicate_tasks import WATCH_RETRIES, WatchAgain, WatchDataPlane

with DAG(
    "mirror_replicate",
    description="Keep a mirror's data plane running, and watch it",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MAX_ACTIVE_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={"mirror": mirror_param("Name of the mirror"), **data_plane_params()},
) as dag:
    watch = WatchDataPlane(task_id="watch", mirror="{{ params.mirror }}", **WATCH_RETRIES)
    again = WatchAgain(task_id="watch_again", mirror="{{ params.mirror }}", trigger_rule=TriggerRule.ONE_FAILED)
    # A second leaf, because `watch_again` ends well: this one keeps the run of an incident red.
    watch >> [again, EmptyOperator(task_id="done")]

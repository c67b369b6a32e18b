"""Bring topics, settings, access rights and consumer groups' offsets from the source to the destination."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import MAX_PARALLEL_TASKS, ListMirrors, SyncMirror
from mirrorbook_airflow.params import mirror_list_param

with DAG(
    "mirror_sync",
    description="Sync topics, settings, access rights and consumer groups' offsets",
    doc_md=__doc__,
    schedule=timedelta(seconds=30),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={"mirrors": mirror_list_param("Mirrors to sync; empty: all that are started")},
) as dag:
    mirrors = ListMirrors(task_id="mirrors")
    each = SyncMirror.partial(task_id="sync", max_active_tis_per_dag=MAX_PARALLEL_TASKS, **SyncMirror.mapped_defaults())
    each.expand(mirror=mirrors.output)

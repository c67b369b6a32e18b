"""Bring topics, settings, access rights and consumer groups' offsets from the source to the destination."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG
from mirrorbook_airflow.notifications import when_red
from mirrorbook_airflow.operators import AT_ONCE, ListMirrors, SyncMirror
from mirrorbook_airflow.params import mirror_list

with DAG(
    "mirror_sync",
    description="Sync topics, settings, access rights and consumer groups' offsets",
    doc_md=__doc__,
    schedule=timedelta(seconds=30),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **when_red(),
    params={"mirrors": mirror_list("Mirrors to sync; empty: all that are started")},
) as dag:
    mirrors = ListMirrors(task_id="mirrors")
    each = SyncMirror.partial(task_id="sync", max_active_tis_per_dag=AT_ONCE, **SyncMirror.mapped())
    each.expand(mirror=mirrors.output)

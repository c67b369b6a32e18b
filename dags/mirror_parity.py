"""Compare both clusters of mirrors, as a Spark job judged by Great Expectations. Red unless everything was equal.

Puts receipts of past days together, too: red when some were lost or altered."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param
from mirrorbook_airflow.notifying import when_red
from mirrorbook_airflow.operators import RETRIES, CheckParity, CompactReceipts, ListMirrors
from mirrorbook_airflow.params import spark_master

with DAG(
    "mirror_parity",
    description="Prove that a mirror's destination equals its source",
    doc_md=__doc__,
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **when_red(),
    params={
        "mirrors": Param(
            [], type="array", items={"type": "string"}, description_md="Mirrors to compare; none: all that are started"
        ),
        "whole": Param(
            False, type="boolean", description_md="Compare all anew; else only what was not proved yet, and the ends"
        ),
        "master": spark_master(),
    },
) as dag:
    mirrors = ListMirrors(task_id="mirrors")
    CheckParity.partial(
        task_id="parity", map_index_template="{{ task.mirror }}", max_active_tis_per_dagrun=1, **RETRIES
    ).expand(mirror=mirrors.output)
    CompactReceipts.partial(
        task_id="receipts", map_index_template="{{ task.mirror }}", max_active_tis_per_dagrun=1, **RETRIES
    ).expand(mirror=mirrors.output)

"""Compare both clusters of mirrors, as a Spark job judged by Great Expectations. Red unless everything was equal."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param
from mirrorbook_airflow.operators import CheckParity, ListMirrors
from mirrorbook_airflow.params import spark_master

with DAG(
    "mirror_parity",
    description="Prove that a mirror's destination equals its source",
    doc_md=__doc__,
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    params={
        "mirrors": Param(
            [], type="array", items={"type": "string"}, description_md="Mirrors to compare; none: all that are started"
        ),
        "master": spark_master(),
    },
) as dag:
    mirrors = ListMirrors(task_id="mirrors")
    CheckParity.partial(task_id="parity", map_index_template="{{ task.mirror }}", max_active_tis_per_dagrun=1).expand(
        mirror=mirrors.output
    )

"""Compare the source and the destination of mirrors, by Spark or without it. Red unless everything was equal.

Great Expectations judges the result, with the limits of your tiers: red unless all is as expected, also where something
is not known. The DAG also merges the receipts of past days, and is red if some were lost or altered.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import CheckClusters, CheckParity, CompactReceipts, ListMirrors
from mirrorbook_airflow.params import bytes_per_s_param, mirror_list_param, spark_master_param

with DAG(
    "mirror_parity",
    description="Compare a mirror's destination with its source",
    doc_md=__doc__,
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={
        "mirrors": mirror_list_param("Mirrors to compare; empty: all that are started"),
        "whole": Param(
            False,
            type="boolean",
            description_md="Compare everything again; otherwise only what was not compared yet, and the ends",
        ),
        "bytes_per_s": bytes_per_s_param("Bytes per second read of each cluster, of one mirror after the other"),
        "master": spark_master_param(),
    },
) as dag:
    CheckClusters(task_id="clusters")  # behind nothing, and nothing behind it: red by itself
    mirrors = ListMirrors(task_id="mirrors")
    for name, operator in (("parity", CheckParity), ("receipts", CompactReceipts)):
        each = operator.partial(task_id=name, max_active_tis_per_dagrun=1, **operator.mapped_defaults())
        each.expand(mirror=mirrors.output)

"""Check whether mirrors are ready for a failover, and what a sync would find now, with the limits of your tiers.

Great Expectations judges both. Red unless all is as expected, also where something is not known. No record is read: a
comparison that takes hours, or hangs, holds up none of this.

Task `watchers` is red where a fence is pending or standing on the old source of a failover, and nobody watches it;
`approvers` where the deployment names users who may approve, and they can be nobody's.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG
from mirrorbook_airflow.approvals import CheckApprovers
from mirrorbook_airflow.fence_watch import CheckWatchers
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import CheckClusters, CheckMirror, ListMirrors
from mirrorbook_airflow.params import mirror_list_param

with DAG(
    "mirror_check",
    description="Check whether a mirror is ready for a failover, and as expected",
    doc_md=__doc__,
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={
        "mirrors": mirror_list_param("Mirrors to check; empty: all that are started"),
    },
) as dag:
    CheckClusters(task_id="clusters")  # behind nothing, and nothing behind it: red by itself
    CheckWatchers(task_id="watchers")  # the same
    CheckApprovers(task_id="approvers")  # the same
    check = CheckMirror.partial(task_id="check", max_active_tis_per_dagrun=1, **CheckMirror.mapped_defaults())
    check.expand(mirror=ListMirrors(task_id="mirrors").output)

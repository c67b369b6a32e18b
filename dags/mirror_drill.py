"""Rehearse failovers: the same steps, on a topic that no application uses. The drill removes it afterwards.

One planned, then one unplanned, also when the planned one failed. Red when a step fails, when the promoted copy
differs from what was written, or when something could not be removed. The task's log and `mirrorbook drill list NAME`
show what was predicted and what was measured.
"""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, Param
from mirrorbook_airflow.drill_tasks import BOTH_MODES, CleanDrill, DrillMirror
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import ListMirrors
from mirrorbook_airflow.params import mirror_list_param

with DAG(
    "mirror_drill",
    description="Rehearse the failover of mirrors, each on a topic of its own",
    doc_md=__doc__,
    schedule="@weekly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    tags=["mirrorbook"],
    **notify_on_failure(),
    params={
        "mirrors": mirror_list_param("Mirrors to drill; empty: all that are started"),
        "mode": Param(
            BOTH_MODES,
            type="string",
            enum=[BOTH_MODES, "planned", "unplanned"],
            description_md="`planned`: loses nothing; `unplanned`: does without the source, and counts what is lost; "
            f"`{BOTH_MODES}`: one after the other",
        ),
    },
) as dag:
    mirrors = ListMirrors(task_id="mirrors")
    drill = DrillMirror.partial(task_id="drill", max_active_tis_per_dagrun=1, **DrillMirror.mapped_defaults())
    clean = CleanDrill.partial(task_id="clean", max_active_tis_per_dagrun=1, **CleanDrill.mapped_defaults())
    drilled, cleaned = drill.expand(mirror=mirrors.output), clean.expand(mirror=mirrors.output)
    drilled >> cleaned.as_teardown(on_failure_fail_dagrun=True)

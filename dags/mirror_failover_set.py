"""Move applications of several mirrors together, with one approval. Nothing is lost.

Section `sets:` of `mirrors.yaml` names the set. Until the first mirror is promoted, a failure of one aborts all;
afterwards clear the failed task, and the remaining mirrors continue. A rejected or failed run is red.
However it ends, the log of `last_words` says of each mirror who can write where, and what to do next.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import when_red_or_late
from mirrorbook_airflow.operators import MANY_RUNS, URGENT
from mirrorbook_airflow.params import gate_limit, mirror_set, pause, spark_master
from mirrorbook_airflow.set_tasks import set_phases

with DAG(
    "mirror_failover_set",
    description="Fail over the mirrors of an application together",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MANY_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT,
    **when_red_or_late(),
    params={
        "set": mirror_set("Name of the set of mirrors"),
        "master": spark_master(),
        "pause": pause(),
        "gate_limit_s": gate_limit(),
    },
) as dag:
    ends = set_phases("{{ params.set }}", "Fail over set {{ params.set }}?")
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    [*ends] >> EmptyOperator(task_id="done")

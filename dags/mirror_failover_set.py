"""Move applications of several mirrors together, with one approval. Nothing is lost.

Section `sets:` of `mirrors.yaml` names the set. Until the first mirror is promoted, a failure of one aborts all;
afterwards clear the failed task, and the remaining mirrors continue. A rejected or failed run is red.
However it ends, the log of `last_words` says of each mirror who can write where, and what to do next.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import notify_on_failure_or_deadline
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import gate_limit_param, pause_param, set_param, spark_master_param
from mirrorbook_airflow.set_tasks import make_set_tasks

with DAG(
    "mirror_failover_set",
    description="Fail over the mirrors of an application together",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MAX_ACTIVE_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT_TASK_DEFAULTS,
    **notify_on_failure_or_deadline(),
    params={
        "set": set_param("Name of the set of mirrors"),
        "master": spark_master_param(),
        "pause": pause_param(),
        "gate_limit_s": gate_limit_param(),
    },
) as dag:
    ends = make_set_tasks("{{ params.set }}", "Fail over set {{ params.set }}?")
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    [*ends] >> EmptyOperator(task_id="done")

"""Bring applications home after a failover, and protect them again.

The first approval covers the records that only the old source has: the run saves them to files and removes them there.
Then it copies everything home while applications keep working. The second approval covers the switch itself, a planned
failover of the reverse mirror. A rejected or failed run is red; clear the failed task to continue it.
However it ends, the log of `last_words` says who can write where, and what to do next.
"""

from __future__ import annotations

from datetime import datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from mirrorbook_airflow.notifications import notify_on_failure
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import data_plane_params, gate_limit_param, mirror_param, pause_param, strategies_param
from mirrorbook_airflow.runbook import make_failback_tasks

with DAG(
    "mirror_failback",
    description="Fail a mirror back: align the old source, copy home, switch, protect again",
    doc_md=__doc__,
    schedule=None,
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=MAX_ACTIVE_RUNS,
    is_paused_upon_creation=False,
    tags=["mirrorbook", "runbook"],
    default_args=URGENT_TASK_DEFAULTS,
    **notify_on_failure(),
    params={
        "mirror": mirror_param("Name of the mirror that was failed over"),
        "strategies": strategies_param(),
        "pause": pause_param(),
        "gate_limit_s": gate_limit_param(),
        **data_plane_params(),
    },
) as dag:
    phases = make_failback_tasks(
        "{{ params.mirror }}",
        question="Fail back mirror {{ params.mirror }}?",
        home_question="Bring applications of mirror {{ params.mirror }} home?",
        strategies="{{ params.strategies or '' }}",
    )
    # Teardowns don't count for the state of a run; this leaf is what makes a rejected or failed one red.
    phases.last >> EmptyOperator(task_id="done")

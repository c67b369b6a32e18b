"""The DAG factory: DAGs for all mirrors, or of one mirror or set, with a team's settings on top of ours."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from airflow.sdk import DAG, Param

from mirrorbook_airflow.dag_actions import ACTIONS, DAG_PREFIX, DagAction, TargetKind, read_texts
from mirrorbook_airflow.notifications import notify_on_failure, notify_on_failure_or_deadline
from mirrorbook_airflow.operators import MAX_ACTIVE_RUNS, URGENT_TASK_DEFAULTS
from mirrorbook_airflow.params import mirror_list_param, mirror_param, set_param

START_DATE: Final = datetime(2026, 1, 1)


def mirrorbook_dags(*actions: str) -> dict[str, DAG]:
    return {dag.dag_id: dag for dag in (_make_dag(action) for action in actions or ACTIONS)}


def _make_target_param(name: str, action: DagAction) -> Param:
    text = read_texts()[name]["target"]
    if name == "create":
        return Param(type="string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description_md=text)
    make = {TargetKind.MIRROR: mirror_param, TargetKind.MIRRORS: mirror_list_param, TargetKind.SET: set_param}
    return make[action.target](text)


def _make_dag(name: str) -> DAG:
    action, texts = ACTIONS[name], read_texts()[name]
    paused: dict[str, Any] = (
        {} if action.schedule and not action.is_active_at_once else {"is_paused_upon_creation": False}
    )
    with DAG(
        f"{DAG_PREFIX}{name}",
        description=texts["description"],
        doc_md=texts["doc_md"],
        schedule=action.schedule,
        start_date=START_DATE,
        catchup=False,
        max_active_runs=1 if action.schedule or action.is_singular else MAX_ACTIVE_RUNS,
        tags=["mirrorbook", *(["runbook"] if action.is_runbook else [])],
        default_args=URGENT_TASK_DEFAULTS if action.is_runbook else {},
        **paused,
        **(notify_on_failure_or_deadline() if action.has_deadline else notify_on_failure()),
        params={action.target.value: _make_target_param(name, action), **action.params()},
    ) as dag:
        action.build(f"{{{{ params.{action.target} }}}}")
    return dag

"""Questions of Airflow's tasks about a mirror that nobody has answered yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import select

from mirrorbook_airflow.page.buttons import MIRROR_BUTTON_LABELS, SET_BUTTON_LABELS


@dataclass(frozen=True, slots=True)
class PendingApproval:
    dag: str
    subject: str
    asked_ms: int
    path: str
    """Within Airflow's UI."""


def list_pending_approvals(mirror: str, sets: Collection[str]) -> Sequence[PendingApproval]:
    """Only while the DAG run is running; the oldest question first. `sets`: those that the mirror is a member of."""
    dags = (*MIRROR_BUTTON_LABELS, *SET_BUTTON_LABELS)
    query = (
        select(TaskInstance.dag_id, TaskInstance.run_id, HITLDetail.subject, HITLDetail.created_at, DagRun.conf)
        .select_from(HITLDetail)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
        .where(HITLDetail.responded_at.is_(None), DagRun.state == DagRunState.RUNNING, TaskInstance.dag_id.in_(dags))
        .order_by(HITLDetail.created_at)
    )
    with create_session() as database:
        rows = database.execute(query).all()
    return [
        PendingApproval(dag, subject, round(asked.timestamp() * 1000), _format_path(dag, run))
        for dag, run, subject, asked, conf in rows
        if _concerns(conf or {}, mirror, sets)
    ]


def _concerns(conf: dict[str, object], mirror: str, sets: Collection[str]) -> bool:
    return conf.get("mirror") == mirror or conf.get("set") in sets


def _format_path(dag: str, run: str) -> str:
    return f"/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}/required_actions?response_received=false"

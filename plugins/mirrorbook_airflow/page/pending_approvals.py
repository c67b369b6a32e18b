"""Questions of Airflow's tasks about a mirror that nobody has answered yet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.renderedtifields import RenderedTaskInstanceFields as RenderedFields
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import select

from mirror_core.model.names import MirrorName, get_base_name
from mirror_core.page.snapshots import PendingApproval

ASKING_TASKS: Final = ("ApprovePlan", "ApproveSecond", "GoAhead")
"""Classes of the tasks that ask, whatever DAG they are in."""


def list_pending_approvals(mirror: str, sets: Collection[str]) -> Sequence[PendingApproval]:
    """Only while the DAG run is running; the oldest question first. `sets`: those that the mirror is a member of."""
    rendered = (
        (RenderedFields.dag_id == TaskInstance.dag_id)
        & (RenderedFields.run_id == TaskInstance.run_id)
        & (RenderedFields.task_id == TaskInstance.task_id)
        & (RenderedFields.map_index == TaskInstance.map_index)
    )
    query = (
        select(TaskInstance.dag_id, TaskInstance.run_id, HITLDetail.subject, HITLDetail.created_at)
        .add_columns(DagRun.conf, RenderedFields.rendered_fields)
        .select_from(HITLDetail)
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
        .outerjoin(RenderedFields, rendered)
        .where(HITLDetail.responded_at.is_(None), DagRun.state == DagRunState.RUNNING)
        .where(TaskInstance.operator.in_(ASKING_TASKS))
        .order_by(HITLDetail.created_at)
    )
    with create_session() as database:
        rows = database.execute(query).all()
    return [
        PendingApproval(dag, subject, round(asked.timestamp() * 1000), _format_path(dag, run))
        for dag, run, subject, asked, conf, fields in rows
        if _concerns(conf or {}, fields or {}, mirror, sets)
    ]


def _concerns(conf: Mapping[str, object], fields: Mapping[str, object], mirror: str, sets: Collection[str]) -> bool:
    """By the run's parameters, or by the mirror that the task asks about: a DAG of a team has no parameter for it.
    Airflow keeps the rendered fields of the newest runs only."""
    asked = str(fields.get("mirror") or "")
    mirrors = (conf.get("mirror"), asked, get_base_name(MirrorName(asked)))
    return mirror in mirrors or conf.get("set") in sets or fields.get("set_name") in sets


def _format_path(dag: str, run: str) -> str:
    return f"/dags/{quote(dag, safe='')}/runs/{quote(run, safe='')}/required_actions?response_received=false"

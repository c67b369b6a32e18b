"""Who may see the page, and what they may trigger. It is Airflow's auth manager that decides."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from mirrorbook_airflow.page.buttons import FAILOVER

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

may_see = requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN, param_dag_id=FAILOVER)
"""What is shown is what runs of this DAG show: whoever may see those may see the page."""


def permitted(user: BaseUser, dags: Collection[str]) -> dict[str, str]:
    """Why this user may not trigger each of these DAGs; empty: may."""
    with create_session() as database:
        rows = database.execute(select(DagModel.dag_id, DagModel.is_stale).where(DagModel.dag_id.in_(dags)))
        stale = {dag: is_stale for dag, is_stale in rows}
    return {dag: _why_not(dag, stale.get(dag), user) for dag in dags}


def _why_not(dag: str, stale: bool | None, user: BaseUser) -> str:
    if stale is None or stale:
        return f"Airflow has no DAG {dag}"
    may = get_auth_manager().is_authorized_dag(
        method="POST",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag, team_name=DagModel.get_team_name(dag)),
        user=user,
    )
    return "" if may else f"{user.get_name()} may not trigger DAG {dag}"

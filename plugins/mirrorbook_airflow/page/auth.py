"""Access to the page and its buttons, decided by Airflow's auth manager."""

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

require_page_access = requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN, param_dag_id=FAILOVER)
"""The page shows what runs of this DAG show."""


def explain_denied_dags(user: BaseUser, dags: Collection[str], own: Collection[str]) -> dict[str, str]:
    """Reason by DAG; empty: allowed. `own`: DAGs of one mirror or set; those that do not exist are left out."""
    with create_session() as database:
        rows = database.execute(select(DagModel.dag_id, DagModel.is_stale).where(DagModel.dag_id.in_([*dags, *own])))
        stale = {dag: is_stale for dag, is_stale in rows}
    known = (*dags, *(dag for dag in own if stale.get(dag) is False))
    return {dag: _explain_denied(dag, stale.get(dag), user) for dag in known}


def _explain_denied(dag: str, stale: bool | None, user: BaseUser) -> str:
    if stale is None or stale:
        return f"Airflow has no DAG {dag}"
    is_allowed = get_auth_manager().is_authorized_dag(
        method="POST",
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag, team_name=DagModel.get_team_name(dag)),
        user=user,
    )
    return "" if is_allowed else f"{user.get_name()} may not trigger DAG {dag}"

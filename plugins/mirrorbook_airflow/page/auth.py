"""Access to the page, to each mirror and to the buttons, decided by Airflow's auth manager."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import HTTPException, Request
from sqlalchemy import select

from mirror_core.model.names import MirrorName
from mirrorbook_airflow.page.buttons import FAILOVER, choose_deciding_dag

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser


def require_page_access(request: Request, user: GetUserDep) -> None:
    """Raises 403 unless the user may see the route's mirror; of routes without one, any. Tells no names."""
    mirror = request.path_params.get("mirror")
    if mirror is not None:
        is_allowed = bool(select_visible_mirrors(user, [MirrorName(mirror)]))
    else:
        is_allowed = any(_is_allowed("GET", dag, user) for dag in (FAILOVER, *_list_own_failover_dags()))
    if not is_allowed:
        raise HTTPException(
            403,
            f"this takes the right to read runs of the mirror's DAG {FAILOVER}.NAME, or of {FAILOVER} if it has none",
        )


def select_visible_mirrors(user: BaseUser, mirrors: Collection[MirrorName]) -> set[MirrorName]:
    """Those whose runs of failovers the user may read. A DAG whose file Airflow cannot read decides, too."""
    own = _list_own_failover_dags()
    deciding = {mirror: choose_deciding_dag(mirror, own) for mirror in mirrors}
    allowed = {dag for dag in {*deciding.values()} if _is_allowed("GET", dag, user)}
    return {mirror for mirror, dag in deciding.items() if dag in allowed}


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
    return "" if _is_allowed("POST", dag, user) else f"{user.get_name()} may not trigger DAG {dag}"


def _list_own_failover_dags() -> set[str]:
    with create_session() as database:
        query = select(DagModel.dag_id).where(DagModel.dag_id.startswith(f"{FAILOVER}.", autoescape=True))
        return set(database.scalars(query))


def _is_allowed(method: Literal["GET", "POST"], dag: str, user: BaseUser) -> bool:
    return get_auth_manager().is_authorized_dag(
        method=method,
        access_entity=DagAccessEntity.RUN,
        details=DagDetails(id=dag, team_name=DagModel.get_team_name(dag)),
        user=user,
    )

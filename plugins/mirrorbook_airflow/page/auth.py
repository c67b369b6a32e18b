"""Access to the page, to each mirror and to the buttons, decided by Airflow's auth manager."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from mirror_core.model.names import MirrorName
from mirror_core.page.routes import PageError
from mirrorbook_airflow.page.buttons import (
    FAILOVER,
    MIRROR_BUTTON_LABELS,
    SET_BUTTON_LABELS,
    choose_deciding_dag,
    list_mirror_buttons,
    list_own_dags,
    list_own_set_dags,
    list_set_buttons,
)
from mirrorbook_airflow.page.pending_approvals import list_pending_approvals

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

    from mirror_core.decide.process_liveness import ConductorStatus
    from mirror_core.model.run import Run
    from mirror_core.page.snapshots import ActionButton, MirrorAssessment, PendingApproval


class AirflowViewer:
    """A `routes.Viewer` of the core: a user of Airflow."""

    def __init__(self, user: BaseUser, airflow: str) -> None:
        self.name = user.get_name()
        self.airflow: str | None = airflow
        self._user = user

    def require_access(self, mirror: MirrorName | None) -> None:
        if mirror is not None:
            is_allowed = bool(self.select_visible([mirror]))
        else:
            is_allowed = any(_is_allowed("GET", dag, self._user) for dag in (FAILOVER, *_list_own_failover_dags()))
        if not is_allowed:
            dags = f"{FAILOVER}.NAME, or of {FAILOVER} if it has none"
            raise PageError(403, f"this takes the right to read runs of the mirror's DAG {dags}")

    def select_visible(self, mirrors: Collection[MirrorName]) -> set[MirrorName]:
        return select_visible_mirrors(self._user, mirrors)

    def list_mirror_buttons(
        self, mirror: MirrorName, assessment: MirrorAssessment | None, run: Run | None, conductor: ConductorStatus
    ) -> Iterator[ActionButton]:
        possible = list_own_dags(mirror)
        denied = explain_denied_dags(self._user, MIRROR_BUTTON_LABELS, possible.values())
        own = {dag: dag_id for dag, dag_id in possible.items() if dag_id in denied}
        return list_mirror_buttons(denied, assessment, run, conductor, own)

    def list_set_buttons(
        self, name: str, unknown: Sequence[MirrorName], active_runs: Sequence[Run]
    ) -> Iterator[ActionButton]:
        possible = list_own_set_dags(name)
        denied = explain_denied_dags(self._user, SET_BUTTON_LABELS, possible.values())
        own = {dag: dag_id for dag, dag_id in possible.items() if dag_id in denied}
        return list_set_buttons(denied, unknown, active_runs, own)

    def list_pending_approvals(self, mirror: MirrorName, sets: Collection[str]) -> Sequence[PendingApproval]:
        return list_pending_approvals(mirror, sets)


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

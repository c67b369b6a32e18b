"""Rights by DAG in a running Airflow, as FAB and Keycloak give them. Its simple auth manager knows roles only, and
`airflow standalone` takes no other: this is loaded as a file of its plugins folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

_is_authorized_by_role = SimpleAuthManager.is_authorized_dag


def is_authorized_dag(
    self: SimpleAuthManager, *, user: SimpleAuthManagerUser, details: DagDetails | None = None, **asked: Any
) -> bool:
    """A viewer has all rights on the DAGs of the mirror with the viewer's name, and on no other DAG."""
    if user.role != "viewer":
        return _is_authorized_by_role(self, user=user, details=details, **asked)
    return details is not None and details.id is not None and details.id.endswith(f".{user.username}")


def restrict_viewers() -> None:
    SimpleAuthManager.is_authorized_dag = is_authorized_dag  # type: ignore[method-assign]

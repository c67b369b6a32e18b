"""Page sessions, shared by tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def signed_in(role: str | None) -> dict[str, str]:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username=f"a-{role}", role=role)
    return {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}

"""Registers the page. Loaded by every Airflow process, so the application is imported by the first request for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from mirrorbook_airflow.page import PREFIX, get_page_root

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def lazy_app(scope: Scope, receive: Receive, send: Send) -> None:
    """The page's application."""
    from mirrorbook_airflow.page.routes import app

    await app(scope, receive, send)


class MirrorbookPlugin(AirflowPlugin):
    """The entry has no `url_route`: Airflow would put the page into a frame, from which no link leads to Airflow."""

    name = "mirrorbook"
    fastapi_apps: list[Any] = [  # noqa: RUF012 - declared so by Airflow
        {"app": lazy_app, "url_prefix": PREFIX, "name": "Mirrorbook"}
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {"name": "Disaster recovery", "href": f"{get_page_root()}/", "destination": "nav", "category": "browse"}
    ]

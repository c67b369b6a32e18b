"""The core's pages in Airflow. All only read, and each checks the user's access (see `auth`)."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from starlette.exceptions import HTTPException

from mirror_core.page.poller import PollerSettings
from mirror_core.page.routes import PageRequest, PageResponse, Pages, make_error_response
from mirror_core.state.mirror_link import load_clusters
from mirrorbook_airflow.airflow_variables import CLUSTERS_VARIABLE
from mirrorbook_airflow.hooks import get_home_folder, list_unusable_connections, provide_config
from mirrorbook_airflow.mirror_lookup import require_clusters
from mirrorbook_airflow.object_store import ObjectFolder
from mirrorbook_airflow.page import PREFIX
from mirrorbook_airflow.page.auth import AirflowViewer
from mirrorbook_airflow.params import read_prometheus_address
from mirrorbook_airflow.worker_services import make_services

CONFIG_NAME: Final = "dr-page"
pages: Final = Pages(
    PollerSettings(
        load_config=lambda: load_clusters(provide_config(CONFIG_NAME, require_clusters())),
        list_unusable_clusters=list_unusable_connections,
        make_services=lambda config: make_services(config, (), ""),
        get_prometheus_address=read_prometheus_address,
        add_clusters_advice=f"add both of its clusters to the Variable {CLUSTERS_VARIABLE}",
    ),
    lambda: get_home_folder("evidence"),
    ObjectFolder,
)
app: Final = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, title="Mirrorbook")


@app.get("/{path:path}")
def get_page(request: Request, user: GetUserDep, path: str) -> Response:
    base = _get_base_path(request)
    viewer = AirflowViewer(user, base)
    asked = PageRequest(path=f"/{path}", query=request.query_params, viewer=viewer, root=f"{base}{PREFIX}")
    return _send(pages.respond(asked))


@app.exception_handler(HTTPException)
async def send_error(request: Request, error: HTTPException) -> Response:
    """In words on a page; who is not signed in is led to Airflow's login."""
    base = _get_base_path(request)
    path = request.url.path.removeprefix(base + PREFIX)
    if error.status_code == 401 and not path.startswith(("/api/", "/static/")):
        return RedirectResponse(f"{base}/api/v2/auth/login?next={quote(str(request.url), safe='')}", 303)
    return _send(make_error_response(path, error.status_code, error.detail))


def _get_base_path(request: Request) -> str:
    """Path under which a proxy shows Airflow; mostly empty."""
    return str(request.scope.get("root_path", "")).removesuffix(PREFIX)


def _send(answer: PageResponse) -> Response:
    headers = {**answer.headers, **({"Location": answer.location} if answer.location else {})}
    if isinstance(answer.content, Path):
        return FileResponse(answer.content, answer.status, headers, answer.media_type)
    return Response(answer.content, answer.status, headers, answer.media_type)

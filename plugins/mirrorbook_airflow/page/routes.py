"""The page's routes. All only read, and each checks the user's access (see `auth`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR
from mirror_core.evidence.run_report import SET_PAGE
from mirror_core.mirrors.runbook_content import collect_runbook
from mirror_core.model.config_sections import format_source_set
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.hooks import get_home_folder
from mirrorbook_airflow.page import PREFIX
from mirrorbook_airflow.page.auth import explain_denied_dags, require_page_access, select_visible_mirrors
from mirrorbook_airflow.page.buttons import (
    MIRROR_BUTTON_LABELS,
    SET_BUTTON_LABELS,
    list_mirror_buttons,
    list_own_dags,
    list_own_set_dags,
)
from mirrorbook_airflow.page.mirror_state import ClusterSnapshots
from mirrorbook_airflow.page.number_format import compute_age
from mirrorbook_airflow.page.overview import list_overviews
from mirrorbook_airflow.page.pending_approvals import list_pending_approvals
from mirrorbook_airflow.page.poller import ClusterPoller
from mirrorbook_airflow.page.remote_reports import RemoteReports, ReportsUnreachable, ReportTooLarge, redact_location
from mirrorbook_airflow.page.rendering import render
from mirrorbook_airflow.page.report_files import REPORT_TYPES, ReportPoller, is_report
from mirrorbook_airflow.page.rows import make_mirror_page, select_valid
from mirrorbook_airflow.page.runbook import runbook_body
from mirrorbook_airflow.page.set_page import list_set_views
from mirrorbook_airflow.page.static import STATIC

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REPORT_HEADERS: Final = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
}
"""A report holds names that anybody chose: it is shown as a page that runs nothing and asks for nothing."""

_cluster_poller: Final = ClusterPoller()
_remote_reports: Final = RemoteReports()
_report_poller: Final = ReportPoller(lambda: get_home_folder("evidence"))
_FIRST_POLL_TEXT: Final = "The clusters are being looked at for the first time."
_PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]

pages: Final = APIRouter(dependencies=[Depends(require_page_access)])


@pages.get("/")
def show_mirrors(request: Request, user: GetUserDep) -> HTMLResponse:
    body = _render_mirrors(user, _get_base_path(request))
    return _send_page("page", request, user=user.get_name(), title="Mirrors", body=body, data="api/mirrors")


@pages.get("/api/mirrors")
def get_mirrors_body(request: Request, user: GetUserDep) -> JSONResponse:
    return JSONResponse({"html": _render_mirrors(user, _get_base_path(request))}, headers=HEADERS)


@pages.get("/mirrors/{mirror}")
def show_mirror(
    request: Request, user: GetUserDep, mirror: str, page: _PageNumber = 1, topics: _PageNumber = 1
) -> HTMLResponse:
    """`page`: of its partitions; `topics`: of its topics."""
    status = _find_status(mirror)
    body = _render_mirror(mirror, page, topics, user, _get_base_path(request))
    data = f"api/mirrors/{quote(mirror, safe='')}?page={page}&topics={topics}"
    return _send_page(
        "page", request, user=user.get_name(), title=f"Mirror {mirror}", body=body, data=data, status=status
    )


@pages.get("/api/mirrors/{mirror}")
def get_mirror_body(
    request: Request, user: GetUserDep, mirror: str, page: _PageNumber = 1, topics: _PageNumber = 1
) -> JSONResponse:
    return JSONResponse({"html": _render_mirror(mirror, page, topics, user, _get_base_path(request))}, headers=HEADERS)


@pages.get("/mirrors/{mirror}/runbook")
def show_runbook(request: Request, user: GetUserDep, mirror: str) -> HTMLResponse:
    """What to do with one mirror, to be printed."""
    status = _find_status(mirror)
    body, data = _render_runbook(mirror, _get_base_path(request)), f"api/mirrors/{quote(mirror, safe='')}/runbook"
    title = f"Runbook of mirror {mirror}"
    return _send_page("page", request, user=user.get_name(), title=title, body=body, data=data, status=status)


@pages.get("/api/mirrors/{mirror}/runbook")
def get_runbook_body(request: Request, mirror: str) -> JSONResponse:
    return JSONResponse({"html": _render_runbook(mirror, _get_base_path(request))}, headers=HEADERS)


@pages.get("/runs/{run}/files")
def show_run_reports(request: Request, user: GetUserDep, run: str) -> HTMLResponse:
    snapshots = _require_visible_run(run, user)
    listing = _remote_reports.list_reports(get_home_folder("evidence"), snapshots.copy_to, f"run-{run}")
    body = render("files", run=run, listing=listing, clusters=snapshots, root=f"{_get_base_path(request)}{PREFIX}")
    return _send_page("page", request, user=user.get_name(), title=f"Reports of {run}", body=body, data="")


@pages.get("/runs/{run}/files/{name:path}")
def get_run_report(user: GetUserDep, run: str, name: str) -> Response:
    snapshots = _require_visible_run(run, user)
    return _send_report(get_home_folder("evidence"), snapshots.copy_to, f"run-{run}", name)


@pages.get("/mirrors/{mirror}/reports/{folder}/{file:path}")
def get_mirror_report(mirror: str, folder: str, file: str) -> Response:
    snapshots = _require_known("mirror", lambda clusters: clusters.find_cluster(mirror) is not None)
    if not is_report(mirror, folder):
        raise HTTPException(404, "there is no such report")
    copies = f"{snapshots.copy_to.rstrip('/')}/{mirror}" if snapshots.copy_to else None
    return _send_report(get_home_folder("evidence") / mirror, copies, folder, file)


@pages.get("/sets/{attempt}/report")
def get_set_report(user: GetUserDep, attempt: str) -> Response:
    snapshots = _require_visible_run(attempt, user)
    return _send_report(get_home_folder("evidence"), snapshots.copy_to, f"set-{attempt}", SET_PAGE)


@pages.get("/sets/run-{run}/{name:path}")
def redirect_to_run(request: Request, run: str, name: str) -> RedirectResponse:
    """Reports of a set link to those of its runs, in neighbouring folders."""
    return RedirectResponse(f"{_get_base_path(request)}{PREFIX}/runs/{quote(run, safe='')}/files/{quote(name)}", 303)


@pages.get("/static/{name}")
def get_static_file(name: str) -> Response:
    if name not in STATIC:
        raise HTTPException(404, "there is no such file")
    path, media_type = STATIC[name]
    return FileResponse(path, media_type=media_type, headers=HEADERS)


def _render_mirrors(user: Any, base: str) -> str:
    clusters = _cluster_poller.get_clusters()
    if clusters is None:
        return render("waiting", words=_FIRST_POLL_TEXT)
    members = [name for mirror_set in clusters.sets or () for name in mirror_set.mirrors]
    visible = select_visible_mirrors(user, {*members, *(mirror.name for mirror, _ in clusters.mirrors)})
    recorded_mirrors = [mirror for mirror, _ in clusters.mirrors if mirror.name in visible]
    if clusters.sets:
        clusters = replace(clusters, sets=tuple(s for s in clusters.sets if visible.issuperset(s.mirrors)))
    views, readiness = (
        {m.name: _cluster_poller.get_view(m.name) for m in recorded_mirrors},
        {m.name: _cluster_poller.get_readiness(m) for m in recorded_mirrors},
    )
    rows = [row for row in list_overviews(clusters, views, readiness, now_ms()) if row.name in visible]
    own = [dag for mirror_set in clusters.sets or () for dag in list_own_set_dags(mirror_set.name).values()]
    denied = explain_denied_dags(user, SET_BUTTON_LABELS, own) if clusters.sets else {}
    sets = list(list_set_views(clusters, rows, denied, now_ms()))
    return render("mirrors", rows=rows, sets=sets, clusters=clusters, base=base, root=f"{base}{PREFIX}")


def _render_mirror(name: str, page: int, topics: int, user: Any, base: str) -> str:
    clusters = _cluster_poller.get_clusters()
    cluster = clusters.find_cluster(name) if clusters else None
    if clusters is None or cluster is None:
        return _render_unknown_mirror(clusters, name)
    mirror_name = MirrorName(name)
    mirror_view, assessment, history = (
        _cluster_poller.get_view(mirror_name),
        _cluster_poller.get_assessment(mirror_name),
        _cluster_poller.get_history(mirror_name),
    )
    mirror_view = history.prepend_to(mirror_view) if mirror_view and history else mirror_view
    recorded_mirror, at_ms = cluster.state.mirrors[mirror_name], now_ms()
    idle = clusters.find_idle_reverse(recorded_mirror)
    view = make_mirror_page(recorded_mirror, cluster, mirror_view, assessment, at_ms, page, topics, idle)
    run = cluster.state.active_run(mirror_name)
    conductor = cluster.find_conductor_status(run, at_ms) if run else UNKNOWN_CONDUCTOR
    possible = list_own_dags(mirror_name)
    denied = explain_denied_dags(user, MIRROR_BUTTON_LABELS, possible.values())
    own = {dag: dag_id for dag, dag_id in possible.items() if dag_id in denied}
    valid = select_valid(assessment, cluster, recorded_mirror, at_ms)
    buttons = list(list_mirror_buttons(denied, valid, run, conductor, own))
    sets = [mirror_set.name for mirror_set in clusters.sets or () if name in mirror_set.mirrors]
    trouble = {"trouble": clusters.error, "past": history.error if history else ""}
    panels = {"reports": _report_poller.get_newest(name), "sets": sets, **trouble}
    pending = list_pending_approvals(name, [*sets, format_source_set(recorded_mirror.source)])
    return render("mirror", view=view, actions=buttons, pending=pending, **panels, base=base, root=f"{base}{PREFIX}")


def _render_runbook(name: str, base: str) -> str:
    """From the state topic alone, so that it can be had when the source is dead."""
    clusters = _cluster_poller.get_clusters()
    cluster = clusters.find_cluster(name) if clusters else None
    if clusters is None or cluster is None:
        return _render_unknown_mirror(clusters, name)
    link = cluster.links.get(MirrorName(name))
    if link is None:
        return render(
            "waiting", words=f"Mirror {name}: not both of its clusters are in Airflow. {_list_errors(clusters)}"
        )
    return runbook_body(
        collect_runbook(link, cluster.state, cluster.at_ms), cluster.unreachable_reason, f"{base}{PREFIX}"
    )


def _render_unknown_mirror(clusters: ClusterSnapshots | None, name: str) -> str:
    if clusters is None:
        return render("waiting", words=_FIRST_POLL_TEXT)
    return render(
        "waiting",
        words=f"No cluster that answers knows a mirror {name}. The page goes on asking. {_list_errors(clusters)}",
    )


def _list_errors(clusters: ClusterSnapshots) -> str:
    return " ".join([clusters.error, *(f"Cluster {name}: {why}" for name, why in clusters.unreachable.items())]).strip()


def _find_status(name: str) -> int:
    """404 when all clusters responded and none knows this mirror. The page goes on polling."""
    clusters = _cluster_poller.get_clusters()
    if clusters is None or clusters.error or clusters.unreachable or compute_age(clusters.at_ms, now_ms()).stale:
        return 200
    return 404 if clusters.find_cluster(name) is None else 200


def _require_known(noun: str, is_known: Callable[[ClusterSnapshots], bool]) -> ClusterSnapshots:
    """Raises 404 unless a cluster knows it: requests cannot name other folders."""
    clusters = _cluster_poller.get_clusters()
    if clusters and is_known(clusters):
        return clusters
    if clusters is None or compute_age(clusters.at_ms, now_ms()).stale:
        raise HTTPException(503, "the clusters are being looked at: try again in some seconds")
    raise HTTPException(404, f"no cluster that answers knows such a {noun}")


def _require_visible_run(run: str, user: Any) -> ClusterSnapshots:
    """A run of a mirror that the user may not see is as unknown as one that does not exist."""

    def is_visible(clusters: ClusterSnapshots) -> bool:
        mirrors = clusters.find_run_mirrors(run)
        return bool(mirrors) and mirrors == select_visible_mirrors(user, mirrors)

    return _require_known("run", is_visible)


def _send_report(evidence: Path, copy_to: str | None, folder: str, name: str) -> Response:
    try:
        report = _remote_reports.read_report(evidence, copy_to, folder, name)
    except ReportsUnreachable as error:
        raise HTTPException(503, f"this machine has no such report, and the copy cannot be read: {error}") from None
    except ReportTooLarge as error:
        raise HTTPException(413, str(error)) from None
    media_type = REPORT_TYPES.get(PurePosixPath(name).suffix)
    if isinstance(report, bytes):
        return Response(report, media_type=media_type, headers=REPORT_HEADERS)
    if report is None:
        copied = f" and no copy in {redact_location(copy_to)}" if copy_to else ""
        raise HTTPException(404, f"{folder}: there is no such report on this machine{copied}")
    return FileResponse(report, media_type=media_type, headers=REPORT_HEADERS)


def _get_base_path(request: Request) -> str:
    """Path under which a proxy shows Airflow; mostly empty."""
    return str(request.scope.get("root_path", "")).removesuffix(PREFIX)


def _send_page(template: str, request: Request, status: int = 200, **values: object) -> HTMLResponse:
    base = _get_base_path(request)
    return HTMLResponse(render(template, base=base, root=f"{base}{PREFIX}", **values), status, HEADERS)


async def _send_error(request: Request, error: Exception) -> Response:
    """In words on a page; who is not signed in is led to Airflow's login."""
    assert isinstance(error, AnyHTTPException)
    path = request.url.path.removeprefix(_get_base_path(request) + PREFIX)
    if path.startswith("/api/"):
        return JSONResponse({"detail": error.detail}, error.status_code, headers=HEADERS)
    if error.status_code == 401 and not path.startswith("/static/"):
        return RedirectResponse(
            f"{_get_base_path(request)}/api/v2/auth/login?next={quote(str(request.url), safe='')}", 303
        )
    return HTMLResponse(render("refused", status=error.status_code, words=error.detail), error.status_code, HEADERS)


async def _send_invalid(request: Request, error: Exception) -> Response:
    """FastAPI's own answer repeats the value, without our headers."""
    return await _send_error(request, HTTPException(422, "this address contains a value that no page accepts"))


app: Final = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, title="Mirrorbook")
app.include_router(pages)
app.add_exception_handler(AnyHTTPException, _send_error)
app.add_exception_handler(RequestValidationError, _send_invalid)

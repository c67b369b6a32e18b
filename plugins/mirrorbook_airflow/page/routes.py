"""The page's routes: all of them read, and each asks Airflow whether this user may. See `rights`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR
from mirror_core.evidence.run_report import SET_PAGE
from mirror_core.mirrors.describe import collect_runbook
from mirror_core.model.names import MirrorName
from mirror_core.model.timing import now_ms
from mirrorbook_airflow.hooks import home
from mirrorbook_airflow.page import PREFIX
from mirrorbook_airflow.page.auth import may_see, permitted
from mirrorbook_airflow.page.buttons import ACTIONS, SET_ACTIONS, actions
from mirrorbook_airflow.page.mirror_state import Clusters
from mirrorbook_airflow.page.number_format import age_of
from mirrorbook_airflow.page.overview import overview
from mirrorbook_airflow.page.poller import Looking
from mirrorbook_airflow.page.remote_reports import Copies, NoAnswer, TooLarge, where
from mirrorbook_airflow.page.rendering import render
from mirrorbook_airflow.page.report_files import TYPES, Reports, is_report
from mirrorbook_airflow.page.rows import mirror_page, still_holds
from mirrorbook_airflow.page.runbook import runbook_body
from mirrorbook_airflow.page.set_page import sets_of
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

_looking: Final = Looking()
_copies: Final = Copies()
_reports: Final = Reports(lambda: home("evidence"))
_FIRST: Final = "The clusters are being looked at for the first time."
_Page = Annotated[int, Query(ge=1, le=1_000_000)]

pages: Final = APIRouter(dependencies=[Depends(may_see)])


@pages.get("/")
def mirrors(request: Request, user: GetUserDep) -> HTMLResponse:
    """All mirrors."""
    body = _mirrors(user, _base(request))
    return _html("page", request, user=user.get_name(), title="Mirrors", body=body, data="api/mirrors")


@pages.get("/api/mirrors")
def mirrors_now(request: Request, user: GetUserDep) -> JSONResponse:
    """The same, for the page that is open."""
    return JSONResponse({"html": _mirrors(user, _base(request))}, headers=HEADERS)


@pages.get("/mirrors/{name}")
def mirror(request: Request, user: GetUserDep, name: str, page: _Page = 1, topics: _Page = 1) -> HTMLResponse:
    """One mirror. `page`: of its partitions; `topics`: of its topics."""
    status = _found(name)
    body = _mirror(name, page, topics, user, _base(request))
    data = f"api/mirrors/{quote(name, safe='')}?page={page}&topics={topics}"
    return _html("page", request, user=user.get_name(), title=f"Mirror {name}", body=body, data=data, status=status)


@pages.get("/api/mirrors/{name}")
def mirror_now(request: Request, user: GetUserDep, name: str, page: _Page = 1, topics: _Page = 1) -> JSONResponse:
    """The same, for the page that is open."""
    return JSONResponse({"html": _mirror(name, page, topics, user, _base(request))}, headers=HEADERS)


@pages.get("/mirrors/{name}/runbook")
def runbook(request: Request, user: GetUserDep, name: str) -> HTMLResponse:
    """What to do with one mirror, to be printed."""
    status = _found(name)
    body, data = _runbook(name, _base(request)), f"api/mirrors/{quote(name, safe='')}/runbook"
    title = f"Runbook of mirror {name}"
    return _html("page", request, user=user.get_name(), title=title, body=body, data=data, status=status)


@pages.get("/api/mirrors/{name}/runbook")
def runbook_now(request: Request, name: str) -> JSONResponse:
    """The same, for the page that is open."""
    return JSONResponse({"html": _runbook(name, _base(request))}, headers=HEADERS)


@pages.get("/runs/{run}/files")
def files(request: Request, user: GetUserDep, run: str) -> HTMLResponse:
    """What a run has left behind."""
    found = _knowing("run", lambda clusters: clusters.knows_run(run))
    listing = _copies.listing(home("evidence"), found.copy_to, f"run-{run}")
    body = render("files", run=run, listing=listing, clusters=found, root=f"{_base(request)}{PREFIX}")
    return _html("page", request, user=user.get_name(), title=f"Reports of {run}", body=body, data="")


@pages.get("/runs/{run}/files/{name:path}")
def file(run: str, name: str) -> Response:
    """One report."""
    found = _knowing("run", lambda clusters: clusters.knows_run(run))
    return _report(home("evidence"), found.copy_to, f"run-{run}", name)


@pages.get("/mirrors/{name}/reports/{folder}/{file:path}")
def mirror_report(name: str, folder: str, file: str) -> Response:
    """A page of a comparison, or of a check."""
    found = _knowing("mirror", lambda clusters: clusters.find(name) is not None)
    if not is_report(name, folder):
        raise HTTPException(404, "there is no such report")
    copies = f"{found.copy_to.rstrip('/')}/{name}" if found.copy_to else None
    return _report(home("evidence") / name, copies, folder, file)


@pages.get("/sets/{attempt}/report")
def set_report(attempt: str) -> Response:
    """On the failover of a set."""
    found = _knowing("failover", lambda clusters: clusters.knows_attempt(attempt))
    return _report(home("evidence"), found.copy_to, f"set-{attempt}", SET_PAGE)


@pages.get("/sets/run-{run}/{name:path}")
def beside_set(request: Request, run: str, name: str) -> RedirectResponse:
    """Where the report on a set leads to: to those of its runs, which are beside its folder."""
    return RedirectResponse(f"{_base(request)}{PREFIX}/runs/{quote(run, safe='')}/files/{quote(name)}", 303)


@pages.get("/static/{name}")
def static(name: str) -> Response:
    """Style and script."""
    if name not in STATIC:
        raise HTTPException(404, "there is no such file")
    path, media_type = STATIC[name]
    return FileResponse(path, media_type=media_type, headers=HEADERS)


def _mirrors(user: Any, base: str) -> str:
    found = _looking.clusters()
    if found is None:
        return render("waiting", words=_FIRST)
    known = [mirror for mirror, _ in found.mirrors]
    seen, ready = {m.name: _looking.seen(m.name) for m in known}, {m.name: _looking.ready(m) for m in known}
    rows = overview(found, seen, ready, now_ms())
    sets = list(sets_of(found, rows, permitted(user, SET_ACTIONS) if found.sets else {}, now_ms()))
    return render("mirrors", rows=rows, sets=sets, clusters=found, base=base, root=f"{base}{PREFIX}")


def _mirror(name: str, page: int, topics: int, user: Any, base: str) -> str:
    found = _looking.clusters()
    told = found.find(name) if found else None
    if found is None or told is None:
        return _no_mirror(found, name)
    mirror_name = MirrorName(name)
    seen, judged, past = _looking.seen(mirror_name), _looking.judged(mirror_name), _looking.past(mirror_name)
    seen = past.before(seen) if seen and past else seen
    known, at_ms = told.state.mirrors[mirror_name], now_ms()
    view = mirror_page(known, told, seen, judged, at_ms, page, topics)
    run = told.state.active_run(mirror_name)
    conducted = told.conducted(run, at_ms) if run else UNKNOWN_CONDUCTOR
    buttons = list(actions(permitted(user, ACTIONS), still_holds(judged, told, known, at_ms), run, conducted))
    sets = [one.name for one in found.sets or () if name in one.mirrors]
    trouble = {"trouble": found.trouble, "past": past.trouble if past else ""}
    beside = {"reports": _reports.newest(name), "sets": sets, **trouble}
    return render("mirror", view=view, actions=buttons, **beside, base=base, root=f"{base}{PREFIX}")


def _runbook(name: str, base: str) -> str:
    """From the state topic alone, so that it can be had when the source is dead."""
    found = _looking.clusters()
    told = found.find(name) if found else None
    if found is None or told is None:
        return _no_mirror(found, name)
    link = told.links.get(MirrorName(name))
    if link is None:
        return render("waiting", words=f"Mirror {name}: not both of its clusters are in Airflow. {_why(found)}")
    return runbook_body(collect_runbook(link, told.state, told.at_ms), told.silent, f"{base}{PREFIX}")


def _no_mirror(found: Clusters | None, name: str) -> str:
    """Why a mirror is not shown."""
    if found is None:
        return render("waiting", words=_FIRST)
    return render(
        "waiting", words=f"No cluster that answers knows a mirror {name}. The page goes on asking. {_why(found)}"
    )


def _why(found: Clusters) -> str:
    return " ".join([found.trouble, *(f"Cluster {name}: {why}" for name, why in found.silent.items())]).strip()


def _found(name: str) -> int:
    """Status 404 when all clusters have just answered, and none knows this mirror. The page goes on asking all the
    same: it may have been made since."""
    found = _looking.clusters()
    if found is None or found.trouble or found.silent or age_of(found.at_ms, now_ms()).stale:
        return 200
    return 404 if found.find(name) is None else 200


def _knowing(what: str, knows: Callable[[Clusters], bool]) -> Clusters:
    """A folder is told by a run that a cluster knows, not by whoever asks."""
    found = _looking.clusters()
    if found and knows(found):
        return found
    if found is None or age_of(found.at_ms, now_ms()).stale:
        raise HTTPException(503, "the clusters are being looked at: try again in some seconds")
    raise HTTPException(404, f"no cluster that answers knows such a {what}")


def _report(evidence: Path, copy_to: str | None, folder: str, name: str) -> Response:
    try:
        report = _copies.report(evidence, copy_to, folder, name)
    except NoAnswer as error:
        raise HTTPException(503, f"this machine has no such report, and the copy cannot be read: {error}") from None
    except TooLarge as error:
        raise HTTPException(413, str(error)) from None
    media_type = TYPES.get(PurePosixPath(name).suffix)
    if isinstance(report, bytes):
        return Response(report, media_type=media_type, headers=REPORT_HEADERS)
    if report is None:
        copied = f" and no copy in {where(copy_to)}" if copy_to else ""
        raise HTTPException(404, f"{folder}: there is no such report on this machine{copied}")
    return FileResponse(report, media_type=media_type, headers=REPORT_HEADERS)


def _base(request: Request) -> str:
    """Path under which a proxy shows Airflow; mostly empty."""
    return str(request.scope.get("root_path", "")).removesuffix(PREFIX)


def _html(template: str, request: Request, status: int = 200, **values: object) -> HTMLResponse:
    base = _base(request)
    return HTMLResponse(render(template, base=base, root=f"{base}{PREFIX}", **values), status, HEADERS)


async def _refused(request: Request, error: Exception) -> Response:
    """In words on a page; who is not signed in is led to Airflow's login."""
    assert isinstance(error, AnyHTTPException)
    path = request.url.path.removeprefix(_base(request) + PREFIX)
    if path.startswith("/api/"):
        return JSONResponse({"detail": error.detail}, error.status_code, headers=HEADERS)
    if error.status_code == 401 and not path.startswith("/static/"):
        return RedirectResponse(f"{_base(request)}/api/v2/auth/login?next={quote(str(request.url), safe='')}", 303)
    return HTMLResponse(render("refused", status=error.status_code, words=error.detail), error.status_code, HEADERS)


app: Final = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, title="Mirrorbook")
app.include_router(pages)
app.add_exception_handler(AnyHTTPException, _refused)

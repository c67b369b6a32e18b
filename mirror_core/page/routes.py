"""The pages, by address. Knows no web server. Everything is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR, ConductorStatus
from mirror_core.decide.steps import find_no_return_step, list_step_rows
from mirror_core.evidence.html_templates import make_visible
from mirror_core.evidence.run_report import SET_PAGE
from mirror_core.evidence.runbook_page import RunbookContent
from mirror_core.mirrors.runbook_content import collect_runbook
from mirror_core.model.config_sections import format_source_set
from mirror_core.model.figures import FIRST_STEP_TEXT
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Run, RunKind, RunMode
from mirror_core.model.text import format_count
from mirror_core.model.timing import now_ms
from mirror_core.page.mirror_page import make_mirror_page, select_valid
from mirror_core.page.overview import list_overviews, list_set_views
from mirror_core.page.plots import PLOT_HEIGHT, PLOT_WIDTH
from mirror_core.page.poller import ClusterPoller, PollerSettings
from mirror_core.page.reports import (
    REPORT_TYPES,
    RemoteReports,
    ReportPoller,
    ReportStore,
    ReportsUnreachable,
    ReportTooLarge,
    is_report,
    redact_location,
)
from mirror_core.page.snapshots import (
    ActionButton,
    ClusterSnapshots,
    MirrorAssessment,
    PendingApproval,
    compute_age,
    format_number,
)

HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
)
REPORT_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **HEADERS,
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
    }
)
"""A report holds names that anybody chose: it is shown as a page that runs nothing and requests nothing."""
HTML: Final = "text/html; charset=utf-8"
MAX_PAGE_NUMBER: Final = 1_000_000
_STATIC_FOLDER: Final = Path(__file__).parent / "static"
_STATIC_TYPES: Final = MappingProxyType(
    {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
)
_FIRST_POLL_TEXT: Final = "The clusters are being looked at for the first time."


class PageError(Exception):
    """An HTTP status, and why, for the page."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Viewer(Protocol):
    """Decides what a user may see, and offers what they may do."""

    name: str
    airflow: str | None
    """Path of Airflow's UI; None: it serves no page here, and nothing links to it."""

    def require_access(self, mirror: MirrorName | None) -> None:
        """Raises PageError 403 unless they may see the mirror; None: any. Tells no names."""

    def select_visible(self, mirrors: Collection[MirrorName]) -> set[MirrorName]: ...

    def list_mirror_buttons(
        self, mirror: MirrorName, assessment: MirrorAssessment | None, run: Run | None, conductor: ConductorStatus
    ) -> Iterable[ActionButton]:
        """`assessment`: None when outdated."""

    def list_set_buttons(
        self, name: str, unknown: Sequence[MirrorName], active_runs: Sequence[Run]
    ) -> Iterable[ActionButton]:
        """`unknown`: mirrors that no cluster knows; `active_runs`: of the others."""

    def list_pending_approvals(self, mirror: MirrorName, sets: Collection[str]) -> Sequence[PendingApproval]:
        """`sets`: those that the mirror is a member of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    path: str
    """Decoded, below `root`."""
    query: Mapping[str, str]
    viewer: Viewer
    root: str
    """Path of the list of mirrors, without a slash at its end."""


class PageResponse(NamedTuple):
    content: bytes | Path
    media_type: str = HTML
    status: int = 200
    headers: Mapping[str, str] = HEADERS
    location: str = ""
    """Where a redirection leads."""


class Pages:
    def __init__(
        self,
        settings: PollerSettings,
        get_evidence_folder: Callable[[], Path],
        open_report_store: Callable[[str], ReportStore],
    ) -> None:
        """`open_report_store`: by URL; raises BadRequest where this process reaches no such store."""
        self.poller = ClusterPoller(settings)
        self._get_evidence_folder = get_evidence_folder
        self._remote_reports = RemoteReports(open_report_store)
        self._report_poller = ReportPoller(get_evidence_folder)

    def respond(self, request: PageRequest) -> PageResponse:
        try:
            for pattern, answer in ROUTES.items():
                if match := re.fullmatch(pattern, request.path):
                    mirror = match.groupdict().get("mirror")
                    request.viewer.require_access(None if mirror is None else MirrorName(mirror))
                    return answer(self, request, **match.groupdict())
            raise PageError(404, "there is no such page")
        except PageError as error:
            return make_error_response(request.path, error.status, str(error))

    # -- answers, one an address ----------------------------------------------------------------------------------

    def _show_mirrors(self, request: PageRequest) -> PageResponse:
        return _make_page(request, "Mirrors", self._render_mirrors(request), "api/mirrors")

    def _get_mirrors_body(self, request: PageRequest) -> PageResponse:
        return _make_body(self._render_mirrors(request))

    def _show_mirror(self, request: PageRequest, mirror: str) -> PageResponse:
        status = self._find_status(mirror)
        page, topics = (_parse_page_number(request, key) for key in ("page", "topics"))
        data = f"api/mirrors/{quote(mirror, safe='')}?page={page}&topics={topics}"
        return _make_page(request, f"Mirror {mirror}", self._render_mirror(request, mirror), data, status)

    def _get_mirror_body(self, request: PageRequest, mirror: str) -> PageResponse:
        return _make_body(self._render_mirror(request, mirror))

    def _show_runbook(self, request: PageRequest, mirror: str) -> PageResponse:
        status = self._find_status(mirror)
        body, data = self._render_runbook(request, mirror), f"api/mirrors/{quote(mirror, safe='')}/runbook"
        return _make_page(request, f"Runbook of mirror {mirror}", body, data, status)

    def _get_runbook_body(self, request: PageRequest, mirror: str) -> PageResponse:
        return _make_body(self._render_runbook(request, mirror))

    def _show_run_reports(self, request: PageRequest, run: str) -> PageResponse:
        clusters = self._require_visible_run(request.viewer, run)
        listing = self._remote_reports.list_reports(self._get_evidence_folder(), clusters.copy_to, f"run-{run}")
        base = request.viewer.airflow
        body = render("files", run=run, listing=listing, clusters=clusters, base=base, root=request.root)
        return _make_page(request, f"Reports of {run}", body, "")

    def _get_run_report(self, request: PageRequest, run: str, name: str) -> PageResponse:
        clusters = self._require_visible_run(request.viewer, run)
        return self._read_report(self._get_evidence_folder(), clusters.copy_to, f"run-{run}", name)

    def _get_mirror_report(self, request: PageRequest, mirror: str, folder: str, name: str) -> PageResponse:
        clusters = self._require_known("mirror", lambda clusters: clusters.find_cluster(mirror) is not None)
        if not is_report(mirror, folder):
            raise PageError(404, "there is no such report")
        copies = f"{clusters.copy_to.rstrip('/')}/{mirror}" if clusters.copy_to else None
        return self._read_report(self._get_evidence_folder() / mirror, copies, folder, name)

    def _get_set_report(self, request: PageRequest, attempt: str) -> PageResponse:
        clusters = self._require_visible_run(request.viewer, attempt)
        return self._read_report(self._get_evidence_folder(), clusters.copy_to, f"set-{attempt}", SET_PAGE)

    def _redirect_to_run(self, request: PageRequest, run: str, name: str) -> PageResponse:
        location = f"{request.root}/runs/{quote(run, safe='')}/files/{quote(name)}"
        return PageResponse(content=b"", status=303, location=location)

    def _get_static_file(self, request: PageRequest, name: str) -> PageResponse:
        if name not in _STATIC_TYPES:
            raise PageError(404, "there is no such file")
        return PageResponse(content=_STATIC_FOLDER / name, media_type=_STATIC_TYPES[name])

    # -- bodies ---------------------------------------------------------------------------------------------------

    def _render_mirrors(self, request: PageRequest) -> str:
        clusters, viewer = self.poller.get_clusters(), request.viewer
        if clusters is None:
            return render("waiting", words=_FIRST_POLL_TEXT)
        members = [name for mirror_set in clusters.sets or () for name in mirror_set.mirrors]
        visible = viewer.select_visible({*members, *(mirror.name for mirror, _ in clusters.mirrors)})
        mirrors = [mirror for mirror, _ in clusters.mirrors if mirror.name in visible]
        if clusters.sets:
            clusters = replace(clusters, sets=tuple(s for s in clusters.sets if visible.issuperset(s.mirrors)))
        views = {mirror.name: self.poller.get_view(mirror.name) for mirror in mirrors}
        readiness = {mirror.name: self.poller.get_readiness(mirror) for mirror in mirrors}
        rows = [row for row in list_overviews(clusters, views, readiness, now_ms()) if row.name in visible]
        sets = list(list_set_views(clusters, rows, viewer.list_set_buttons, now_ms()))
        return render("mirrors", rows=rows, sets=sets, clusters=clusters, base=viewer.airflow, root=request.root)

    def _render_mirror(self, request: PageRequest, mirror: str) -> str:
        clusters, name = self.poller.get_clusters(), MirrorName(mirror)
        cluster = clusters.find_cluster(name) if clusters else None
        if clusters is None or cluster is None:
            return _render_unknown_mirror(clusters, name)
        page, topics = (_parse_page_number(request, key) for key in ("page", "topics"))
        mirror_view, assessment, history = (
            self.poller.get_view(name),
            self.poller.get_assessment(name),
            self.poller.get_history(name),
        )
        mirror_view = history.prepend_to(mirror_view) if mirror_view and history else mirror_view
        recorded_mirror, at_ms = cluster.state.mirrors[name], now_ms()
        idle = clusters.find_idle_reverse(recorded_mirror)
        view = make_mirror_page(recorded_mirror, cluster, mirror_view, assessment, at_ms, page, topics, idle)
        run = cluster.state.active_run(name)
        conductor = cluster.find_conductor_status(run, at_ms) if run else UNKNOWN_CONDUCTOR
        valid = select_valid(assessment, cluster, recorded_mirror, at_ms)
        sets = [mirror_set.name for mirror_set in clusters.sets or () if name in mirror_set.mirrors]
        viewer = request.viewer
        return render(
            "mirror",
            view=view,
            actions=list(viewer.list_mirror_buttons(name, valid, run, conductor)),
            pending=viewer.list_pending_approvals(name, [*sets, format_source_set(recorded_mirror.source)]),
            reports=self._report_poller.get_newest(name),
            sets=sets,
            trouble=clusters.error,
            past=history.error if history else "",
            base=viewer.airflow,
            root=request.root,
        )

    def _render_runbook(self, request: PageRequest, mirror: str) -> str:
        """From the state topic alone: the source may be dead."""
        clusters = self.poller.get_clusters()
        cluster = clusters.find_cluster(mirror) if clusters else None
        if clusters is None or cluster is None:
            return _render_unknown_mirror(clusters, mirror)
        link = cluster.links.get(MirrorName(mirror))
        if link is None:
            text = f"Mirror {mirror}: not both of its clusters are known here. {_list_errors(clusters)}"
            return render("waiting", words=text)
        content = collect_runbook(link, cluster.state, cluster.at_ms)
        return runbook_body(content, cluster.unreachable_reason, request.root)

    # -- what is known --------------------------------------------------------------------------------------------

    def _find_status(self, name: str) -> int:
        clusters = self.poller.get_clusters()
        if clusters is None or clusters.error or clusters.unreachable or compute_age(clusters.at_ms, now_ms()).stale:
            return 200
        return 404 if clusters.find_cluster(name) is None else 200

    def _require_known(self, noun: str, is_known: Callable[[ClusterSnapshots], bool]) -> ClusterSnapshots:
        """404 unless a cluster knows it: requests cannot name other folders."""
        clusters = self.poller.get_clusters()
        if clusters and is_known(clusters):
            return clusters
        if clusters is None or compute_age(clusters.at_ms, now_ms()).stale:
            raise PageError(503, "the clusters are being looked at: try again in some seconds")
        raise PageError(404, f"no cluster that answers knows such a {noun}")

    def _require_visible_run(self, viewer: Viewer, run: str) -> ClusterSnapshots:
        """A run that the user may not see is as unknown as one that does not exist."""

        def is_visible(clusters: ClusterSnapshots) -> bool:
            mirrors = clusters.find_run_mirrors(run)
            return bool(mirrors) and mirrors == viewer.select_visible(mirrors)

        return self._require_known("run", is_visible)

    def _read_report(self, evidence: Path, copy_to: str | None, folder: str, name: str) -> PageResponse:
        try:
            report = self._remote_reports.read_report(evidence, copy_to, folder, name)
        except ReportsUnreachable as error:
            raise PageError(503, f"this machine has no such report, and the copy cannot be read: {error}") from None
        except ReportTooLarge as error:
            raise PageError(413, str(error)) from None
        if report is None:
            copied = f" and no copy in {redact_location(copy_to)}" if copy_to else ""
            raise PageError(404, f"{folder}: there is no such report on this machine{copied}")
        media_type = REPORT_TYPES[PurePosixPath(name).suffix]
        return PageResponse(content=report, media_type=media_type, headers=REPORT_HEADERS)


ROUTES: Final[Mapping[str, Callable[..., PageResponse]]] = MappingProxyType(
    {
        "/": Pages._show_mirrors,
        "/api/mirrors": Pages._get_mirrors_body,
        "/mirrors/(?P<mirror>[^/]+)": Pages._show_mirror,
        "/api/mirrors/(?P<mirror>[^/]+)": Pages._get_mirror_body,
        "/mirrors/(?P<mirror>[^/]+)/runbook": Pages._show_runbook,
        "/api/mirrors/(?P<mirror>[^/]+)/runbook": Pages._get_runbook_body,
        "/runs/(?P<run>[^/]+)/files": Pages._show_run_reports,
        "/runs/(?P<run>[^/]+)/files/(?P<name>.*)": Pages._get_run_report,
        "/mirrors/(?P<mirror>[^/]+)/reports/(?P<folder>[^/]+)/(?P<name>.*)": Pages._get_mirror_report,
        "/sets/(?P<attempt>[^/]+)/report": Pages._get_set_report,
        "/sets/run-(?P<run>[^/]+)/(?P<name>.*)": Pages._redirect_to_run,
        "/static/(?P<name>[^/]+)": Pages._get_static_file,
    }
)
"""By a pattern of the whole path. With a mirror, for users who may see it; without one, for users who may see any."""


def make_error_response(path: str, status: int, text: str) -> PageResponse:
    """A page, or JSON for a page's script."""
    if path.startswith("/api/"):
        content = json.dumps({"detail": text}).encode()
        return PageResponse(content=content, media_type="application/json", status=status)
    return PageResponse(content=render("refused", status=status, words=text).encode(), status=status)


def _make_page(request: PageRequest, title: str, body: str, data: str, status: int = 200) -> PageResponse:
    """`data`: where its script gets the body anew; empty: nowhere."""
    viewer = request.viewer
    page = render("page", base=viewer.airflow, root=request.root, user=viewer.name, title=title, body=body, data=data)
    return PageResponse(content=page.encode(), status=status)


def _make_body(html: str) -> PageResponse:
    return PageResponse(content=json.dumps({"html": html}).encode(), media_type="application/json")


def _parse_page_number(request: PageRequest, key: str) -> int:
    text = request.query.get(key, "1")
    number = int(text) if re.fullmatch("[0-9]{1,7}", text, re.ASCII) else 0
    if not 1 <= number <= MAX_PAGE_NUMBER:
        raise PageError(422, "this address contains a value that no page accepts")
    return number


def _render_unknown_mirror(clusters: ClusterSnapshots | None, name: str) -> str:
    if clusters is None:
        return render("waiting", words=_FIRST_POLL_TEXT)
    text = f"No cluster that answers knows a mirror {name}. The page goes on asking. {_list_errors(clusters)}"
    return render("waiting", words=text)


def _list_errors(clusters: ClusterSnapshots) -> str:
    return " ".join([clusters.error, *(f"Cluster {name}: {why}" for name, why in clusters.unreachable.items())]).strip()


def _make_visible(value: object) -> object:
    return value if isinstance(value, Markup) else make_visible(value)


def _format_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _format_code(text: str) -> Markup:
    parts = (escape(make_visible(part)) for part in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


SHOWN_CARD_LINES: Final = 4
"""The rest is folded: nothing of a card is cut off."""
_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.PackageLoader("mirror_core.page", "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_make_visible,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(when=_format_time, number=format_number, count=format_count, code=_format_code)
_ENVIRONMENT.globals.update(
    first_step=FIRST_STEP_TEXT, plot_width=PLOT_WIDTH, plot_height=PLOT_HEIGHT, card_lines=SHOWN_CARD_LINES
)


def render(template: str, **values: object) -> str:
    return _ENVIRONMENT.get_template(f"{template}.html.j2").render(**values)


_STEP_TABLES: Final = MappingProxyType(
    {
        "planned": (RunKind.FAILOVER, RunMode.PLANNED),
        "unplanned": (RunKind.FAILOVER, RunMode.UNPLANNED),
        "home": (RunKind.FAILBACK, RunMode.PLANNED),
    }
)


@dataclass(frozen=True, slots=True)
class StepTable:
    rows: Sequence[tuple[str, str, str, str, str]]
    no_return_step: str
    """The step behind which there is no way back."""


def runbook_body(book: RunbookContent, silent: str, root: str) -> str:
    """`silent`: why what the destination had recorded could not be read since; empty: it was."""
    tables = {
        name: StepTable(list(list_step_rows(kind, mode, **book.names)), find_no_return_step(kind, mode))
        for name, (kind, mode) in _STEP_TABLES.items()
    }
    return render("runbook", book=book, mirror=book.mirror, silent=silent, root=root, **tables)

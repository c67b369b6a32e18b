"""`mirrorbook page`: serves the pages to whoever reaches the address."""

from __future__ import annotations

import ipaddress
import signal
import threading
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import parse_qsl, urlsplit

import typer

from mirror_core.cli.command_options import ConfigOption, JsonOption, print_json
from mirror_core.cli.http_server import parse_address, serve_app
from mirror_core.cli.output import print_line
from mirror_core.cli.runs import choose_evidence_folder
from mirror_core.kafka.config import Principal, find_config, load_config
from mirror_core.model.errors import BadRequest, format_error_location
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.names import MirrorName
from mirror_core.page.poller import PollerSettings
from mirror_core.page.reports import ReportStore
from mirror_core.page.routes import PageRequest, PageResponse, Pages, make_error_response
from mirror_core.page.snapshots import ActionButton, PendingApproval
from mirror_core.runbook.run_services import local_services

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

LISTEN_OPTION: Final = "--listen"
HOST_OPTION: Final = "--host"
_LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_METHODS: Final = ("GET", "HEAD")


class PageDocument(JsonDocument, frozen=True, kw_only=True):
    """Printed when the pages are served."""

    url: str
    """The list of all mirrors."""


@prints_json(PageDocument)
def page_command(
    listen: Annotated[
        str, typer.Option(LISTEN_OPTION, metavar="[HOST:]PORT", help="Where. Without HOST for this machine only.")
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            HOST_OPTION,
            metavar="NAME",
            help="Also for browsers elsewhere, which reach it by this name. There is no login: whoever does sees all.",
        ),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the pages about mirrors and runs, read only and without Airflow, until SIGTERM."""
    host, port = parse_address(listen, LISTEN_OPTION)
    if not _is_loopback(host) and not hosts:
        raise BadRequest(
            f"{LISTEN_OPTION} {host} can be reached from other machines, and the pages have no login: give "
            f"{HOST_OPTION} NAME, the name by which browsers reach it, if all who do may see all mirrors; or "
            f"{LISTEN_OPTION} {port}"
        )
    path = find_config(config)
    load_config(path, only_principal=Principal.CONTROL)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    app = PageApp(_make_pages(path), {*_LOOPBACK_NAMES, host.lower(), *(name.lower() for name in hosts or ())})
    with serve_app((host, port), app, "the pages", f"give {LISTEN_OPTION} another address") as url:
        if as_json:
            print_json(PageDocument(url=f"{url}/"))
        else:
            print_line(f"page: {url}/")
        stop.wait()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in _LOOPBACK_NAMES


def _make_pages(path: Path) -> Pages:
    evidence = choose_evidence_folder(path, None)
    settings = PollerSettings(
        load_config=partial(load_config, path, only_principal=Principal.CONTROL),
        list_unusable_clusters=lambda _: {},
        make_services=partial(local_services, evidence_dir=evidence),
        get_prometheus_address=lambda: "",
        add_clusters_advice=f"add both of its clusters to {path}",
    )
    return Pages(settings, lambda: evidence, _refuse_store)


def _refuse_store(location: str) -> ReportStore:
    raise BadRequest(f"{location}: only the page in Airflow reads object stores: open it there")


class Anybody:
    """A `routes.Viewer` who sees everything, and is offered nothing to do."""

    name: str = ""
    airflow: str | None = None

    def require_access(self, mirror: MirrorName | None) -> None: ...

    def select_visible(self, mirrors: Collection[MirrorName]) -> set[MirrorName]:
        return set(mirrors)

    def list_mirror_buttons(self, *_: object) -> Sequence[ActionButton]:
        return ()

    def list_set_buttons(self, *_: object) -> Sequence[ActionButton]:
        return ()

    def list_pending_approvals(self, *_: object) -> Sequence[PendingApproval]:
        return ()


class PageApp:
    """By WSGI. `hosts`: names, in lower case, that requests may be for: a foreign page whose name leads here (DNS
    rebinding) reads nothing.
    """

    def __init__(self, pages: Pages, hosts: Collection[str]) -> None:
        self._pages = pages
        self._hosts = hosts

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")
        answer = self._respond(environ, path)
        content = answer.content.read_bytes() if isinstance(answer.content, Path) else answer.content
        headers = {**answer.headers, "Content-Type": answer.media_type, "Content-Length": str(len(content))}
        if answer.location:
            headers["Location"] = answer.location
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_METHODS)
        start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(headers.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [content]

    def _respond(self, environ: WSGIEnvironment, path: str) -> PageResponse:
        if _parse_host_name(environ.get("HTTP_HOST", "")) not in self._hosts:
            text = f"the pages are not served by this name: start `mirrorbook page` with {HOST_OPTION} NAME if they are"
            return make_error_response(path, HTTPStatus.MISDIRECTED_REQUEST, text)
        if environ["REQUEST_METHOD"] not in _METHODS:
            return make_error_response(path, HTTPStatus.METHOD_NOT_ALLOWED, "the pages are only read")
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        try:
            return self._pages.respond(PageRequest(path=path, query=query, viewer=Anybody(), root=""))
        except Exception as error:  # noqa: BLE001 - reported by type and place only: its text may hold secrets
            print_line(f"{format_error_location(error)}: a defect of Mirrorbook", err=True)
            return make_error_response(path, HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of Mirrorbook: see its log")


def _parse_host_name(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""

"""Routes that give reports, in Airflow's own application: of a run and of a set, from this machine and from a copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from mirror_core.decide.failover_readiness import UnplannedForecast
from mirror_core.evidence.run_report import SetPageMirror, write_set_page
from mirror_core.model.config_sections import MirrorSet
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.names import ClusterName, MirrorName, Partition
from mirror_core.model.run import RunKind
from mirror_core.model.timing import now_ms
from mirror_core.page.snapshots import ClusterSnapshot, ClusterSnapshots, MirrorAssessment
from mirror_core.state.state_records import PartitionRecord, State
from tests.support.page_sessions import signed_in
from tests.support.page_views import HOSTILE, MIRROR, NAME, status
from tests.support.set_members import P
from tests.support.set_pages import ATTEMPT, run_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from fastapi.testclient import TestClient
    from httpx import Response

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

URL = "memory://reports@bucket/evidence"
RUN = replace(run_of(NAME), ended_ms=9)
FILES = f"/runs/{RUN.id}/files"
PARITY = "parity-20260102T030405Z"
OF_MIRROR = f"/mirrors/{NAME}/reports/{PARITY}"
REPORTS = (f"{FILES}/index.html", f"{OF_MIRROR}/index.html", f"/sets/{ATTEMPT}/report")
ROUTES = (FILES, *REPORTS, f"/sets/run-{RUN.id}/report.html")
HOSTILES = tuple(map(MirrorName, ("..", ".", "orders\n", "s3:@y", HOSTILE)))
"""Names of mirrors that no command of ours would write, and somebody else could."""


@pytest.fixture(scope="module")
def client(airflow_database: None) -> Iterator[TestClient]:
    from airflow.api_fastapi.app import create_app, purge_cached_app
    from fastapi.testclient import TestClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        with TestClient(create_app(apps="core"), follow_redirects=False) as made:
            yield made
    purge_cached_app()


@pytest.fixture
def get(client: TestClient) -> Callable[..., Response]:
    def ask(path: str, role: str | None = "viewer") -> Response:
        answer: Response = client.get(f"/mirrorbook{path}", headers=signed_in(role))
        return answer

    return ask


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryFileSystem:
    """Where copies are. This machine has none, and knows mirrors, and one run, which is a part of a set's failover."""
    from airflow.sdk.io import attach
    from mirrorbook_airflow.page import routes

    monkeypatch.setattr(MemoryFileSystem, "store", {})
    made = attach("memory", conn_id="reports", fs=MemoryFileSystem(skip_instance_cache=True)).fs
    state = State(runs={RUN.id: RUN}, mirrors={name: replace(MIRROR, name=name) for name in (NAME, *HOSTILES)})
    for n in range(101):
        state.put(PartitionRecord(NAME, status(Partition(f"t{n}", 0))))
    told = {ClusterName("west"): ClusterSnapshot(state, {}, now_ms())}
    monkeypatch.setattr(routes.pages.poller, "get_clusters", lambda: ClusterSnapshots(now_ms(), told, {}, copy_to=URL))
    monkeypatch.setattr(routes, "get_home_folder", lambda part: tmp_path / part)
    return made


def test_a_report_that_only_the_copy_has_opens_and_runs_nothing(
    get: Callable[..., Response], store: MemoryFileSystem
) -> None:
    from mirror_core.page.routes import REPORT_HEADERS

    for name, content in (("index.html", b"<p>moved"), ("run.json", b"{}"), ("salvage/t.parquet", b"record")):
        store.pipe_file(f"/bucket/evidence/run-{RUN.id}/{name}", content)
    page = get(FILES)
    assert page.status_code == 200
    links = re.findall(r'href="/mirrorbook(/runs/[^"]*)">', page.text)
    assert links == [f"{FILES}/index.html", f"{FILES}/run.json"]
    for path, content_type, content in zip(links, ("text/html", "application/json"), (b"<p>moved", b"{}"), strict=True):
        report = get(path)
        assert (report.status_code, report.content) == (200, content)
        assert report.headers["content-type"].startswith(content_type)
        assert {key: report.headers[key] for key in REPORT_HEADERS} == REPORT_HEADERS
    for other in ("salvage/t.parquet", "..%2Frun-other%2Findex.html", "missing.html"):
        answer = get(f"{FILES}/{other}")
        assert answer.status_code == 404
    assert "no copy in memory://bucket/evidence" in answer.text


def test_the_report_of_a_set_opens_and_leads_to_those_of_its_runs(
    get: Callable[..., Response], store: MemoryFileSystem, tmp_path: Path
) -> None:
    page = tmp_path / "evidence" / f"set-{ATTEMPT}" / "index.html"
    write_set_page(page, RunKind.FAILOVER, MirrorSet("shop", (NAME,)), ATTEMPT, [SetPageMirror(RUN, (), P.DONE, ())])
    (tmp_path / "evidence" / f"run-{RUN.id}").mkdir()
    (tmp_path / "evidence" / f"run-{RUN.id}" / "report.html").write_text("of the run")
    report = get(f"/sets/{ATTEMPT}/report")
    assert (report.status_code, report.text) == (200, page.read_text())
    (link,) = re.findall(r'href="\.\.(/run-[^"]*)"', report.text)
    led = get(f"/sets{link}")
    assert (led.status_code, led.headers["location"]) == (303, f"/mirrorbook{FILES}/report.html")
    assert get(f"{FILES}/report.html").text == "of the run"
    page.unlink()
    assert get(f"/sets/{ATTEMPT}/report").status_code == 404
    store.pipe_file(f"/bucket/evidence/set-{ATTEMPT}/index.html", b"the copy")
    assert get(f"/sets/{ATTEMPT}/report").text == "the copy"
    store.pipe_file("/bucket/evidence/set-other-20260101T000000-abcd/index.html", b"of another")
    assert get("/sets/other-20260101T000000-abcd/report").status_code == 404, "no cluster knows of it"


def test_a_comparison_opens_from_this_machine_and_from_the_copy_and_runs_nothing(
    get: Callable[..., Response], store: MemoryFileSystem, tmp_path: Path
) -> None:
    from mirror_core.page.routes import REPORT_HEADERS

    here = tmp_path / "evidence" / NAME / PARITY
    (here / "data-docs").mkdir(parents=True)
    (here / "index.html").write_text("<p>equal")
    (here / "table.parquet").write_text("no page")
    (here / "secret.html").symlink_to(tmp_path / "secret.html")
    (tmp_path / "secret.html").write_text("secret")
    for name in ("index.html", "data-docs/index.html", "result.json", "table.parquet"):
        store.pipe_file(f"/bucket/evidence/{NAME}/{PARITY}/{name}", b"the copy")
    for name, content in (
        ("index.html", "<p>equal"),
        ("data-docs/index.html", "the copy"),
        ("result.json", "the copy"),
    ):
        report = get(f"{OF_MIRROR}/{name}")
        assert (report.status_code, report.text) == (200, content)
        assert {key: report.headers[key] for key in REPORT_HEADERS} == REPORT_HEADERS
    for other in ("table.parquet", "secret.html", "..%2F..%2F..%2Fsecret.html", "%2Fetc%2Fpasswd", "missing.html", ""):
        answer = get(f"{OF_MIRROR}/{other}")
        assert (answer.status_code, "secret" in answer.text) == (404, False), other
    assert f"no copy in memory://bucket/evidence/{NAME}" in get(f"{OF_MIRROR}/missing.html").text


@pytest.mark.parametrize(
    ("mirror", "folder"),
    [
        *((mirror, PARITY) for mirror in ("other", *HOSTILES)),
        *((NAME, folder) for folder in ("salvage", "recover-20260102T030405Z", f"run-{RUN.id}", f"{PARITY}\n", "..")),
    ],
)
def test_nothing_but_reports_of_a_mirror_that_a_cluster_knows_is_given(
    get: Callable[..., Response], store: MemoryFileSystem, tmp_path: Path, mirror: str, folder: str
) -> None:
    store.pipe_file(f"/bucket/evidence/{mirror}/{folder}/index.html", b"a report")
    with suppress(OSError):  # a name that is too long for a file is a key of a store all the same
        there = tmp_path / "evidence" / mirror / folder
        there.mkdir(parents=True, exist_ok=True)
        (there / "index.html").write_text("a report")
    answer = get("/mirrors/{}/reports/{}/index.html".format(*map(escaped, (mirror, folder))))
    assert (answer.status_code, "a report" in answer.text) == (404, False)
    assert "<script" not in answer.text


def escaped(name: str) -> str:
    """Also dots, which a client would take for a step up."""
    return quote(name, safe="").replace(".", "%2E")


def test_a_page_of_the_topics_is_asked_for_and_stays_in_the_open_page(get: Callable[..., Response]) -> None:
    text = get(f"/mirrors/{NAME}?page=1&topics=2").text
    assert f"api/mirrors/{NAME}?page=1&amp;topics=2" in text
    for shown in (text, get(f"/api/mirrors/{NAME}?page=1&topics=2").json()["html"]):
        assert 'id="topics-before"' in shown
        assert 'id="page-next"' in shown


def test_a_failover_without_the_source_is_grey_while_its_refusal_is_known_to_hold(
    get: Callable[..., Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrorbook_airflow.page import auth, routes

    monkeypatch.setattr(auth, "explain_denied_dags", lambda user, dags, own: {})
    for age_ms, grey in ((0, True), (200_000, False)):
        refused = MirrorAssessment(
            now_ms() - age_ms,
            None,
            None,
            unplanned=UnplannedForecast(refused=to_finding_documents([Finding("west is silent")])),
        )
        monkeypatch.setattr(routes.pages.poller, "get_assessment", lambda name, refused=refused: refused)
        text = get(f"/mirrors/{NAME}").text
        assert ('id="why-mirror_failover_unplanned">west is silent<' in text) == grey


def test_a_mirrors_page_lists_its_newest_reports(get: Callable[..., Response], tmp_path: Path) -> None:
    here = tmp_path / "evidence" / NAME / PARITY
    here.mkdir(parents=True)
    (here / "index.html").write_text("<p>equal")
    link = f'href="/mirrorbook{OF_MIRROR}/index.html"'
    wait_until(lambda: link in get(f"/mirrors/{NAME}").text, timeout_s=30, why="it is listed")


def test_a_silent_or_large_copy_is_said(get: Callable[..., Response], monkeypatch: pytest.MonkeyPatch) -> None:
    from mirror_core.page import reports as remote_reports

    for error, code in (
        (remote_reports.ReportsUnreachable("x: no answer within 5 s"), 503),
        (remote_reports.ReportTooLarge("x is too large"), 413),
    ):

        def fail(*asked: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(remote_reports.RemoteReports, "_run_in_thread", fail)
        answer = get(f"{FILES}/index.html")
        assert (answer.status_code, str(error) in answer.text) == (code, True)
        if code == 503:
            assert (get(FILES).status_code, str(error) in get(FILES).text) == (200, True)


@pytest.mark.parametrize("path", ROUTES)
def test_whoever_may_not_see_runs_opens_no_report(
    get: Callable[..., Response], client: TestClient, store: MemoryFileSystem, path: str
) -> None:
    for folder in (f"run-{RUN.id}", f"set-{ATTEMPT}", f"{NAME}/{PARITY}"):
        store.pipe_file(f"/bucket/evidence/{folder}/index.html", b"a report")
    assert get(path).status_code in (200, 303)
    answer = get(path, role=None)
    assert (answer.status_code, "a report" in answer.text) == (403, False)
    unknown = client.get(f"/mirrorbook{path}")
    assert unknown.status_code == 303
    assert unknown.headers["location"].startswith("/api/v2/auth/login?next=")

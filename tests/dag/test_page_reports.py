"""Routes that give reports, in Airflow's own application: of a run and of a set, from this machine and from a copy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from mirrorbook_airflow.page.known import Clusters, Told

from mirror_core.evidence.set_page import Moved, write_set_page
from mirror_core.model.clock import now_ms
from mirror_core.model.mirror_set import MirrorSet
from mirror_core.model.names import ClusterName
from mirror_core.state.records import State
from tests.dag.test_page_routes import signed_in
from tests.unit.test_page_sets import ATTEMPT, run_of
from tests.unit.test_page_views import NAME
from tests.unit.test_sets import P

if TYPE_CHECKING:
    from fastapi.testclient import TestClient
    from httpx import Response

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore")]

URL = "memory://reports@bucket/evidence"
RUN = replace(run_of(NAME), ended_ms=9)
FILES = f"/runs/{RUN.id}/files"
ROUTES = (FILES, f"{FILES}/index.html", f"/sets/{ATTEMPT}/report", f"/sets/run-{RUN.id}/report.html")


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
    """Where copies are. This machine has none, and knows one run, which is a part of a set's failover."""
    from airflow.sdk.io import attach
    from mirrorbook_airflow.page import routes

    monkeypatch.setattr(MemoryFileSystem, "store", {})
    made = attach("memory", conn_id="reports", fs=MemoryFileSystem(skip_instance_cache=True)).fs
    told = {ClusterName("west"): Told(State(runs={RUN.id: RUN}), {}, now_ms())}
    monkeypatch.setattr(routes._looking, "clusters", lambda: Clusters(now_ms(), told, {}, copy_to=URL))
    monkeypatch.setattr(routes, "home", lambda part: tmp_path / part)
    return made


def test_a_report_that_only_the_copy_has_opens_and_runs_nothing(
    get: Callable[..., Response], store: MemoryFileSystem
) -> None:
    from mirrorbook_airflow.page.routes import REPORT_HEADERS

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
    write_set_page(page, MirrorSet("shop", (NAME,)), ATTEMPT, [Moved(RUN, (), P.DONE)])
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


def test_a_silent_or_large_copy_is_said(get: Callable[..., Response], monkeypatch: pytest.MonkeyPatch) -> None:
    from mirrorbook_airflow.page import copies

    for error, status in ((copies.NoAnswer("x: no answer within 5 s"), 503), (copies.TooLarge("x is too large"), 413)):

        def fail(*asked: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(copies.Copies, "_ask", fail)
        answer = get(f"{FILES}/index.html")
        assert (answer.status_code, str(error) in answer.text) == (status, True)
        if status == 503:
            assert (get(FILES).status_code, str(error) in get(FILES).text) == (200, True)


@pytest.mark.parametrize("path", ROUTES)
def test_whoever_may_not_see_runs_opens_no_report(
    get: Callable[..., Response], client: TestClient, store: MemoryFileSystem, path: str
) -> None:
    for folder in (f"run-{RUN.id}", f"set-{ATTEMPT}"):
        store.pipe_file(f"/bucket/evidence/{folder}/index.html", b"a report")
    assert get(path).status_code in (200, 303)
    answer = get(path, role=None)
    assert (answer.status_code, "a report" in answer.text) == (403, False)
    unknown = client.get(f"/mirrorbook{path}")
    assert unknown.status_code == 303
    assert unknown.headers["location"].startswith("/api/v2/auth/login?next=")

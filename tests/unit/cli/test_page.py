"""The pages without Airflow: for whom they are served, and what is answered to everybody else."""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mirror_core.cli.http_server import serve_app
from mirror_core.cli.page import PageApp
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName
from mirror_core.model.timing import now_ms
from mirror_core.page.reports import ReportStore
from mirror_core.page.routes import HEADERS, REPORT_HEADERS, Pages
from mirror_core.page.snapshots import ClusterSnapshot, ClusterSnapshots
from mirror_core.state.state_records import State
from tests.support.cli_process import invoked
from tests.support.page_views import MIRROR, NAME, NO_CLUSTERS

CONFIG = 'clusters:\n  east: {bootstrap.servers: "127.0.0.1:1"}\n'


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Site:
    port: int
    evidence: Path

    def ask(self, path: str, method: str = "GET", host: str = "localhost") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        found = connection.getresponse()
        answer = Answer(found.status, dict(found.getheaders()), found.read().decode())
        connection.close()
        return answer


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    def refuse(location: str) -> ReportStore:
        raise AssertionError(location)

    pages = Pages(NO_CLUSTERS, lambda: tmp_path, refuse)
    state = State()
    state.put(MIRROR)
    known = {ClusterName("west"): ClusterSnapshot(state, {}, now_ms())}
    monkeypatch.setattr(pages.poller, "get_clusters", lambda: ClusterSnapshots(now_ms(), known, {}))
    with serve_app(("127.0.0.1", 0), PageApp(pages, {"localhost", "127.0.0.1", "dr.example"}), "pages", "") as url:
        port = urlsplit(url).port
        assert port is not None
        yield Site(port, tmp_path)


def test_pages_and_their_data_are_served_with_no_button_and_no_link_to_airflow(site: Site) -> None:
    for path in ("/", f"/mirrors/{NAME}", f"/mirrors/{NAME}/runbook", "/static/page.css"):
        answer = site.ask(path)
        assert answer.status == 200, path
        assert HEADERS.items() <= answer.headers.items(), path
        assert "/dags/" not in answer.text, path
        assert "required_actions" not in answer.text, path
    assert f'href="/mirrors/{NAME}"' in site.ask("/").text
    assert site.ask("/api/mirrors").headers["Content-Type"] == "application/json"
    assert (site.ask("/mirrors/other").status, site.ask("/nothing").status) == (404, 404)
    assert site.ask(f"/mirrors/{NAME}?page=none").status == 422


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:80", "localhost.evil.example", "[::1", "dr.example@x"]
)
def test_a_name_that_leads_here_and_is_not_ours_reads_nothing(site: Site, host: str) -> None:
    """Else the page of somebody else could read it by a name of theirs, in a browser that reaches this address."""
    for path in ("/", "/api/mirrors", f"/mirrors/{NAME}", "/static/page.js"):
        answer = site.ask(path, host=host)
        assert answer.status == 421, path
        assert NAME not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9467", "dr.example"])
def test_names_that_were_given_are_ours(site: Site, host: str) -> None:
    assert site.ask("/", host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_is_only_read(site: Site, method: str) -> None:
    answer = site.ask("/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert site.ask("/", "HEAD").text == ""


def test_reports_of_a_mirror_are_served_and_run_nothing(site: Site) -> None:
    folder = site.evidence / NAME / "parity-20260102T030405Z"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("<p>equal")
    (site.evidence / "secret.html").write_text("secret")
    path = f"/mirrors/{NAME}/reports/{folder.name}"
    report = site.ask(f"{path}/index.html")
    assert (report.status, report.text) == (200, "<p>equal")
    assert REPORT_HEADERS.items() <= report.headers.items()
    for other in (
        f"{path}/..%2F..%2Fsecret.html",
        f"{path}/%00",
        f"/mirrors/..{path}/index.html",
        "/static/..%2Froutes.py",
    ):
        assert site.ask(other).status == 404, other


def test_a_defect_is_said_without_its_text(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    password = secrets.token_hex(8)

    def fail(*given: object) -> None:
        raise RuntimeError(password)

    monkeypatch.setattr("mirror_core.page.routes.list_overviews", fail)
    answer = site.ask("/")
    said = capfd.readouterr()
    assert (answer.status, "RuntimeError in test_page.py" in said.err) == (500, True)
    assert password not in answer.text + said.out + said.err


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9467", "dr.example:0"])
def test_an_address_for_others_takes_an_explicit_word(tmp_path: Path, address: str) -> None:
    config = tmp_path / "mirrorbook.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    with pytest.raises(BadRequest, match="give --host NAME"):
        invoked("page", "--listen", address, "--config", str(config))

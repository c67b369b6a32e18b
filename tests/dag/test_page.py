"""The DR page in a running Airflow, looked at in a real browser, of a mirror that real brokers hold."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml

from demo.airflow import Airflow
from mirrorbook_tools.sandbox.credentials import CONTROL
from mirrorbook_tools.sandbox.credentials import DATA as DATA_PRINCIPAL
from tests.support import mirror_sets
from tests.support.browser import browser, found_by_axe
from tests.support.celery_airflow import make_airflow
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.dag, pytest.mark.cluster, pytest.mark.drill]

SET_DAG = "mirror_failover_set"
FAILOVER = "mirror_failover"
DAGS = (FAILOVER, "mirror_failback", "mirror_sync", SET_DAG)
RUNS = ("/runs/r/files", "/runs/r/files/report.html", "/sets/s/report", "/sets/run-r/report.html")
OF_MIRROR = "/mirrors/m/reports/check-20260101T000000Z/data-docs/index.html"
CUT_OFF = """[...document.querySelectorAll(".scroll")].filter(table => table.scrollWidth > table.clientWidth)
    .map(table => table.getAttribute("aria-label"))"""
PAGES = ("/", "/mirrors/m", "/mirrors/m/runbook", OF_MIRROR, *RUNS)
DATA = ("/static/page.js", "/api/mirrors", "/api/mirrors/m", "/api/mirrors/m/runbook")
RUN_S = 600
LONG = '"shop" <b>\'&\u202e' + "x" * 235
"""The name of a set may be anything; of a topic's length."""
IDENTITY = {"connection_id": "west", "conn_type": "kafka_cluster"}


@pytest.fixture(scope="module")
def airflow(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """An Airflow that knows both clusters and has read the DAGs."""
    settings = {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer"}
    found = make_airflow(tmp_path_factory.mktemp("airflow"), settings)
    found.start()
    try:
        found.wait_healthy()
        for cluster in (pair.east, pair.west):
            found.add_connection(cluster.name, cluster.client_config(CONTROL), cluster.client_config(DATA_PRINCIPAL))
        found.call("POST", "/variables", {"key": "mirrorbook_clusters", "value": "east,west"})
        for dag in DAGS:
            found.unpause(dag)
        found.pause("mirror_sync")
        yield found
    finally:
        found.stop()


def name_sets(airflow: Airflow, **sets: list[str]) -> None:
    document = {"sets": {name: {"mirrors": mirrors} for name, mirrors in sets.items()}}
    path = airflow.folder / "mirrorbook" / "mirrors.yaml"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")


@pytest.fixture(scope="module")
def mirrored(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Mirrored, str]:
    """500 records, copied."""
    topic = new_topic(pair.east, partitions=2, prefix="orders-")
    produce(pair.east, topic, 500)
    mirror = new_mirror(pair, tmp_path_factory.mktemp("evidence"), topic)
    mirror.copy()
    return mirror, topic


def test_a_person_sees_lag_fall(airflow: Airflow, mirrored: tuple[Mirrored, str], pair: Pair, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    mirror, topic = mirrored
    with browser(airflow, "admin", tmp_path) as page:
        page.get_by_role("link", name=mirror.name).click()
        expect(page.get_by_role("heading", name=f"Mirror {mirror.name}")).to_be_visible()
        row = page.locator("#partitions tbody tr").filter(has_text=f"{topic}-0")
        expect(row.get_by_role("cell").nth(4)).to_have_text("0")

        produce(pair.east, topic, 300)
        expect(page.locator("#plots")).to_contain_text("Lag: 300 offsets now")
        mirror.copy()
        expect(page.locator("#plots")).to_contain_text("Lag: 0 offsets now, between 0 and 300")

        expect(page.locator("#cards")).to_contain_text("READY")
        expect(page.locator("#drift")).not_to_contain_text("not looked at yet")
        page.locator("#act-mirror_failover").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{airflow.url}/dags/mirror_failover")


def test_a_viewer_sees_and_is_told_why_nothing_can_be_done(
    airflow: Airflow, mirrored: tuple[Mirrored, str], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    mirror, _ = mirrored
    with browser(airflow, "viewer", tmp_path) as page:
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}")
        expect(page.locator("#partitions")).to_contain_text("MIRRORING")
        expect(page.locator("#act-mirror_failover")).to_have_attribute("aria-disabled", "true")
        expect(page.locator("#why-mirror_failover")).to_contain_text("viewer may not trigger DAG mirror_failover")
        assert page.locator("#actions a").count() == 0
        assert page.request.post(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}").status == 405
        refused = page.request.post(
            f"{airflow.url}/api/v2/dags/mirror_failover/dagRuns",
            data={"logical_date": None, "conf": {"mirror": mirror.name}},
        )
        assert refused.status == 403

        name_sets(airflow, shop=[str(mirror.name)])
        page.goto(f"{airflow.url}/mirrorbook/")
        for dag in (SET_DAG, f"{SET_DAG}_unplanned"):
            expect(page.locator(f"#why-{dag}-1")).to_contain_text(f"viewer may not trigger DAG {dag}")
        assert page.locator("#sets .button[href]").count() == 0
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}/runbook")
        expect(page.locator("#look")).to_contain_text(f"mirrorbook mirror describe {mirror.name}")


def test_a_form_offers_the_mirrors_that_exist_now(
    airflow: Airflow, mirrored: tuple[Mirrored, str], tmp_path: Path
) -> None:
    """A task notes them when it has read the state of all clusters, and the DAG processor reads that."""
    from playwright.sync_api import expect

    name = str(mirrored[0].name)

    def offered() -> bool:
        params = airflow.call("GET", f"/dags/{FAILOVER}/details")["params"]
        return name in (params["mirror"]["schema"].get("examples") or ())

    airflow.unpause("mirror_sync")
    try:
        wait_until(offered, timeout_s=RUN_S, why="the form offers the mirror")
    finally:
        airflow.pause("mirror_sync")
    with browser(airflow, "admin", tmp_path) as page:
        trigger = re.compile("^trigger", re.IGNORECASE)
        page.goto(f"{airflow.url}/dags/{FAILOVER}")
        page.get_by_role("button", name=trigger).first.click()
        form = page.get_by_role("dialog")
        expect(form.locator(f'#list_mirror option[value="{name}"]')).to_have_count(1)
        form.locator('[name="element_mirror"]').fill("not-in-the-list")

        page.goto(f"{airflow.url}/dags/mirror_sync")
        page.get_by_role("button", name=trigger).first.click()
        form.locator("#element_mirrors").get_by_role("combobox").click()
        page.get_by_role("option", name=name, exact=True).click()
        form.get_by_role("button", name=trigger).last.click()
        expect(form).to_be_hidden()
    runs = airflow.call("GET", "/dags/mirror_sync/dagRuns?order_by=-run_after&limit=5")["dag_runs"]
    assert {"mirrors": [name]} in [run["conf"] for run in runs]


@pytest.mark.parametrize("path", PAGES)
def test_whoever_is_not_signed_in_is_led_to_the_login(airflow: Airflow, path: str) -> None:
    answer = httpx.get(f"{airflow.url}/mirrorbook{path}", follow_redirects=False)

    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/api/v2/auth/login?next=")
    assert answer.text == ""


@pytest.mark.parametrize("path", DATA)
def test_whoever_is_not_signed_in_gets_no_data(airflow: Airflow, path: str) -> None:
    answer = httpx.get(f"{airflow.url}/mirrorbook{path}", headers={"Cookie": "_token=forged"}, follow_redirects=False)

    assert answer.status_code in (401, 403)
    assert "mirror" not in answer.text.lower()


def test_a_run_is_shown_with_its_reports_which_open_and_nothing_else_does(
    airflow: Airflow, pair: Pair, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    topic = new_topic(pair.east, prefix="orders-")
    produce(pair.east, topic, 50)
    evidence = airflow.folder / "mirrorbook" / "evidence"
    mirror = new_mirror(pair, evidence, topic)
    mirror.copy()
    engine = mirror.failover
    run = engine.begin(engine.plan().hash, approved_by="ann").id
    with browser(airflow, "viewer", tmp_path) as page:
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}")
        expect(page.locator("#cards")).to_contain_text("FAILOVER UNDER WAY")
        expect(page.locator(f"#sum-{run}")).to_contain_text("without writes: not begun")
        engine.run_steps(run, ["prove", "fence"])
        expect(page.locator(f"#sum-{run}")).to_contain_text(re.compile(r"without writes: [0-9.]+ s so far"))
        engine.drive(run)
        expect(page.locator(f"#sum-{run}")).to_contain_text(re.compile(r"DONE, .*without writes: [0-9.]+ s$"))
        expect(page.locator("#partitions")).to_contain_text("STOPPED")

        page.locator(f"#files-{run}").click()
        page.get_by_role("link", name="report.html", exact=True).click()
        expect(page.get_by_text(run).first).to_be_visible()
        for other in ("..%2F..%2Fconfig%2Fdr-page.yaml", "%2Fetc%2Fpasswd", "..%2F..%2F..%2Fairflow.cfg"):
            assert page.request.get(f"{airflow.url}/mirrorbook/runs/{run}/files/{other}").status == 404
        assert page.request.get(f"{airflow.url}/mirrorbook/runs/no-such/files/report.html").status == 404


def test_a_destination_that_falls_silent_is_said_and_its_figures_are_gone(
    airflow: Airflow, mirrored: tuple[Mirrored, str], pair: Pair, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    mirror, _ = mirrored
    with browser(airflow, "viewer", tmp_path) as page:
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}")
        expect(page.locator("#plots")).to_contain_text("Lag: 0 offsets now")
        airflow.call("PATCH", "/connections/west?update_mask=host", {**IDENTITY, "host": "127.0.0.1:1"})
        try:
            expect(page.locator("#alarms")).to_contain_text("west")
            expect(page.locator("#partitions tbody tr").first.get_by_role("cell").nth(4)).to_have_text("unknown")
            expect(page.locator("#alarms")).to_contain_text(re.compile(r"The state was last read \d\d\.\d s ago"))
        finally:
            host = pair.west.client_config(CONTROL)["bootstrap.servers"]
            airflow.call("PATCH", "/connections/west?update_mask=host", {**IDENTITY, "host": host})
        expect(page.locator("#alarms")).to_have_text("")
        expect(page.locator("#plots")).to_contain_text("Lag: 0 offsets now")


def test_an_airflow_that_does_not_answer_makes_the_open_page_say_stale(
    airflow: Airflow, mirrored: tuple[Mirrored, str], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    mirror, _ = mirrored
    with browser(airflow, "viewer", tmp_path) as page:
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}")
        expect(page.locator("#partitions")).to_contain_text("MIRRORING")
        page.context.set_offline(True)
        expect(page.locator("#connection")).to_contain_text("STALE: no answer from the server for")
        page.context.set_offline(False)
        expect(page.locator("#connection")).to_be_hidden()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits(
    airflow: Airflow, mirrored: tuple[Mirrored, str], tmp_path: Path, width: int, dark: bool
) -> None:
    from playwright.sync_api import expect

    mirror, _ = mirrored
    name_sets(airflow, shop=[str(mirror.name)], **{LONG: ["gone", str(mirror.name)]})
    with browser(airflow, "admin", tmp_path, width=width, dark=dark) as page:
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{mirror.name}")
        expect(page.locator("#cards")).to_contain_text("READY")
        expect(page.locator("#partitions")).to_contain_text("MIRRORING")
        mirror.copy()
        expect(page.locator("#plots")).to_contain_text("Loss known: 0 offsets now")
        looked_at(page, "mirror", width, dark=dark)
        page.locator("h1").evaluate("heading => Object.assign(heading.style, {color: '#888', background: '#999'})")
        assert any("color-contrast" in found for found in found_by_axe(page)), "axe sees nothing"
        page.goto(f"{airflow.url}/mirrorbook/")
        line = page.locator("#mirrors tbody tr").filter(has_text=mirror.name)
        expect(line).to_contain_text("READY", timeout=30_000)
        expect(page.locator("#sets")).to_contain_text(LONG.replace("\u202e", "\\u202e"))
        looked_at(page, "mirrors", width, dark=dark)
        page.locator("#set-2-1").click()
        page.locator("#to-runbook").click()
        expect(page.locator("#planned")).to_contain_text(f"mirrorbook failover run {mirror.name}")
        looked_at(page, "runbook", width, dark=dark)
        page.emulate_media(media="print")
        expect(page.locator("header")).to_be_hidden()
        expect(page.locator("#home")).to_be_visible()


def looked_at(page: Page, name: str, width: int, *, dark: bool) -> None:
    assert found_by_axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(CUT_OFF) == [], "tables of which a part is out of sight"
    if folder := os.environ.get("MIRRORBOOK_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}-{width}-{'dark' if dark else 'light'}.png", full_page=True)


@pytest.mark.slow
def test_a_set_that_waits_for_an_approval_is_led_to_it(airflow: Airflow, pair: Pair, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    both = [mirror_sets.mirrored(pair, tmp_path) for _ in range(2)]
    name_sets(airflow, shop=[str(one.name) for one in both])
    run = airflow.trigger(SET_DAG, {"set": "shop"})
    airflow.await_question(SET_DAG, run, "approve", RUN_S)
    with browser(airflow, "admin", tmp_path) as page:
        page.get_by_role("link", name="Approvals that wait").click()
        expect(
            page.get_by_role("link", name=re.compile(r"^Fail over set shop\? Plan [0-9a-f]{12}")).first
        ).to_be_visible()
        airflow.answer(SET_DAG, run, "approve", "Approve")
        airflow.await_question(SET_DAG, run, "go_ahead", RUN_S)
        page.goto(f"{airflow.url}/mirrorbook/")
        expect(page.locator("#sets")).to_contain_text("2 proved")
        page.locator("#set-ask-1").click()
        asked(page, "Stop applications of set shop now")
        page.goto(f"{airflow.url}/mirrorbook/mirrors/{both[0].name}")
        page.locator("[id^=ask-]").first.click()
        asked(page, "Stop applications of set shop now")
        airflow.answer(SET_DAG, run, "go_ahead", "Reject")
        page.goto(f"{airflow.url}/mirrorbook/")
        expect(page.locator("#sets")).to_contain_text("2 given up")


def asked(page: Page, subject: str) -> None:
    from playwright.sync_api import expect

    expect(page.get_by_text(re.compile(f"^{subject}")).first).to_be_visible()

"""`mirrorbook page` in a real browser, over two real clusters and without Airflow."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.desk import Desk
from tests.support.browser import found_by_axe, opened
from tests.support.cli_process import MIRRORBOOK
from tests.support.kafka_clients import new_topic, produce
from tests.support.mirrored_topics import new_mirror

pytestmark = pytest.mark.cluster


def test_a_person_sees_a_mirror_and_its_lag_and_can_change_nothing(desk: Desk, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    topic = new_topic(desk.pair.east)
    produce(desk.pair.east, topic, 500)
    mirrored = new_mirror(desk.pair, tmp_path / "evidence", topic)
    mirrored.copy()
    for cluster in ("east", "west"):  # whoever only looks is not given the data principals' secrets
        desk.change(cluster, {"sasl.password": "${env:NOBODY_HAS_THIS}"})
    command = [*MIRRORBOOK, "page", "--listen", "0", "--config", str(desk.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().removeprefix("page: ").strip()
            assert url.startswith("http://127.0.0.1:")
            with opened(url, url, tmp_path) as page:
                page.get_by_role("link", name=mirrored.name).click()
                expect(page.get_by_role("heading", name=f"Mirror {mirrored.name}")).to_be_visible()
                expect(page.locator("#cards")).to_contain_text("READY")
                expect(page.locator("#plots")).to_contain_text("Lag: 0 offsets now")
                produce(desk.pair.east, topic, 300)
                expect(page.locator("#plots")).to_contain_text("Lag: 300 offsets now")
                expect(page.locator("#actions a, #actions .button, header a[href*=required_actions]")).to_have_count(0)
                assert found_by_axe(page) == []
                page.locator("#to-runbook").click()
                expect(page.locator("#look")).to_contain_text(f"mirrorbook mirror describe {mirrored.name}")
        finally:
            serving.terminate()
    assert serving.returncode == 0

"""Looks on demand, and the reports of a run: one look for all, none for nobody; no file that is not the run's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirror_core.page.poller import BackgroundPoller
from mirror_core.page.reports import find_report, list_reports
from tests.support.waiting import wait_until


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    folder = tmp_path / "evidence" / "run-r"
    (folder / "parity").mkdir(parents=True)
    for name in ("report.html", "run.json", "parity/report.html", "salvage.parquet", "_half.html"):
        (folder / name).write_text("x")
    (tmp_path / "secret.html").write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    return tmp_path / "evidence"


def test_reports_are_pages_and_json_and_no_records(evidence: Path) -> None:
    assert list_reports(evidence, "run-r") == ["link.html", "parity/report.html", "report.html", "run.json"]
    assert list_reports(evidence, "run-another") == []


def test_a_report_of_the_run_is_found(evidence: Path) -> None:
    found = find_report(evidence, "run-r", "parity/report.html")

    assert found == evidence / "run-r" / "parity" / "report.html"


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("r", "../../secret.html"),
        ("r", "/etc/passwd"),
        ("r", "link.html"),
        ("r", "salvage.parquet"),
        ("r", "_half.html"),
        ("r", "parity/../report.html"),
        ("r/../..", "secret.html"),
        ("r/parity", "report.html"),
        ("", "report.html"),
    ],
)
def test_nothing_else_is(evidence: Path, run: str, name: str) -> None:
    assert find_report(evidence, f"run-{run}", name) is None


def test_many_who_ask_share_one_look_and_never_wait_for_it() -> None:
    go, looks = threading.Event(), list[int]()

    def look() -> int:
        looks.append(1)
        assert go.wait(10)
        return len(looks)

    one = BackgroundPoller(look, 0.01, idle_timeout_s=0.2)
    assert [one.get_latest() for _ in range(50)] == [None] * 50
    assert len(looks) <= 1

    go.set()

    assert wait_until(one.get_latest, timeout_s=10, why="a look has ended")


def test_looks_end_when_nobody_asks_and_begin_anew() -> None:
    looks = list[int]()

    def look() -> int:
        looks.append(1)
        return len(looks)

    one = BackgroundPoller(look, 0.01, idle_timeout_s=0.05)
    one.get_latest()
    wait_until(lambda: not one._is_running, timeout_s=10, why="nobody has asked for a while")
    before = len(looks)

    assert before
    assert one.get_latest() == before, "what was found last is still told"
    wait_until(lambda: len(looks) > before, timeout_s=10, why="it looks again")
    wait_until(lambda: not one._is_running, timeout_s=10, why="its thread has ended")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_look_that_breaks_does_not_end_all_looks() -> None:
    broken = [True]

    def look() -> str:
        if broken.pop() if broken else False:
            raise RuntimeError("a bug")
        return "seen"

    one = BackgroundPoller(look, 0.01, idle_timeout_s=0.05)

    assert wait_until(one.get_latest, timeout_s=10, why="it looks again") == "seen"
    wait_until(lambda: not one._is_running, timeout_s=10, why="its thread has ended")

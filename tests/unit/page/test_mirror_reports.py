"""Reports of a mirror's comparisons and checks: the newest are listed, and no other folder is one of them."""

from __future__ import annotations

import errno
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mirror_core.page.reports import (
    MAX_NEWEST_REPORTS,
    NewestReports,
    ReportKind,
    ReportPoller,
    format_folder_name,
    format_page_path,
    is_report,
    list_newest_reports,
)
from tests.support.html_pages import Page
from tests.support.page_views import HOSTILE, page, shown
from tests.support.waiting import wait_until

BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FIRST = {ReportKind.PARITY: "index.html", ReportKind.CHECK: "data-docs/index.html"}


def made(evidence: Path, mirror: str, kind: ReportKind, begun: datetime) -> str:
    """A report; its folder's name."""
    name = format_folder_name(kind, begun)
    file = evidence / mirror / name / FIRST[kind]
    file.parent.mkdir(parents=True)
    file.write_text("a report")
    return name


def test_the_newest_are_listed_of_both_kinds(tmp_path: Path) -> None:
    for hour in range(20):
        made(tmp_path, "orders", ReportKind.CHECK, BEGUN.replace(hour=hour))
    made(tmp_path, "orders", ReportKind.PARITY, BEGUN.replace(hour=18, minute=30))
    made(tmp_path, "other", ReportKind.PARITY, BEGUN.replace(hour=23))

    found = list_newest_reports(tmp_path, "orders").reports

    assert [(one.kind, one.begun) for one in found[:2]] == [
        (ReportKind.CHECK, "2026-01-02 19:04:05 UTC"),
        (ReportKind.PARITY, "2026-01-02 18:30:05 UTC"),
    ]
    assert len(found) == MAX_NEWEST_REPORTS
    assert found[0].path == "orders/reports/check-20260102T190405Z/data-docs/index.html"
    assert list_newest_reports(tmp_path, "no-such") == NewestReports()


def test_what_is_not_finished_or_no_report_is_not_listed(tmp_path: Path) -> None:
    made(tmp_path, "orders", ReportKind.PARITY, BEGUN)
    for name in ("parity-20260103T000000Z", "check-20260103T000000Z/data-docs", "recover-20260103T000000Z"):
        (tmp_path / "orders" / name).mkdir(parents=True)
    (tmp_path / "orders" / "recover-20260103T000000Z" / "index.html").write_text("x")

    assert [one.path for one in list_newest_reports(tmp_path, "orders").reports] == [
        "orders/reports/parity-20260102T030405Z/index.html"
    ]


def test_a_folder_that_cannot_be_read_is_said_and_not_taken_for_empty(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("no folder")
    assert list_newest_reports(tmp_path, "orders") == NewestReports(error="Not a directory")


@pytest.mark.parametrize("kind", ReportKind)
def test_what_a_task_logs_is_the_place_of_a_report(kind: ReportKind) -> None:
    folder = format_folder_name(kind, BEGUN)
    path = format_page_path("/air/mirrorbook", "orders", kind, folder)
    assert path == f"/air/mirrorbook/mirrors/orders/reports/{folder}/{FIRST[kind]}"
    for name in ("orders", "orders-back", "drill.orders", "a.b_c-D1"):
        assert is_report(name, folder)


@pytest.mark.parametrize(
    ("mirror", "folder"),
    [
        ("..", "parity-20260102T030405Z"),
        (".", "parity-20260102T030405Z"),
        (".hidden", "parity-20260102T030405Z"),
        ("", "parity-20260102T030405Z"),
        ("a/b", "parity-20260102T030405Z"),
        ("s3://x@y", "parity-20260102T030405Z"),
        ("orders\n", "parity-20260102T030405Z"),
        (HOSTILE, "parity-20260102T030405Z"),
        ("orders", ".."),
        ("orders", ""),
        ("orders", "recover-20260102T030405Z"),
        ("orders", "run-20260102T030405Z"),
        ("orders", "parity-20260102T030405Z/.."),
        ("orders", "../parity-20260102T030405Z"),
        ("orders", "parity-20260102T030405Z\n"),
        ("orders", "parity-20260102T03040\u0665Z"),
        ("orders", "check-"),
        ("orders", "parity-20260102T030405Z-values"),
    ],
)
def test_nothing_else_is_one(tmp_path: Path, mirror: str, folder: str) -> None:
    assert not is_report(mirror, folder)
    if mirror != "orders":
        assert list_newest_reports(tmp_path, mirror) == NewestReports()


def test_a_folder_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    go = threading.Event()

    def evidence() -> Path:
        assert go.wait(60)
        return tmp_path

    made(tmp_path, "orders", ReportKind.PARITY, BEGUN)
    reports = ReportPoller(evidence)
    assert [reports.get_newest("orders"), reports.get_newest("other"), reports.get_newest("orders")] == [None] * 3
    go.set()
    wait_until(lambda: reports.get_newest("orders"), timeout_s=10, why="the folder answers")
    assert reports.get_newest("orders") == list_newest_reports(tmp_path, "orders") != NewestReports()


def test_the_page_leads_to_them_and_says_why_there_is_none(tmp_path: Path) -> None:
    made(tmp_path, "orders", ReportKind.PARITY, BEGUN)
    made(tmp_path, "orders", ReportKind.CHECK, BEGUN.replace(hour=1))
    text = shown(page(None), list_newest_reports(tmp_path, "orders"))
    assert "/mirrorbook/mirrors/orders/reports/parity-20260102T030405Z/index.html" in Page(text).links
    assert Page(text).items[-2:] == ["comparison of 2026-01-02 03:04:05 UTC", "check of 2026-01-02 01:04:05 UTC"]
    assert "are being looked for" in shown(page(None))
    assert "cannot be listed: &lt;b&gt;" in shown(page(None), NewestReports(error="<b>"))
    assert "has no report of mirror_parity" in shown(page(None), NewestReports())


def test_a_folder_that_cannot_be_looked_into_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders" / "parity-20261127T100000Z").mkdir(parents=True)

    def stale(self: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "is_file", stale)
    assert list_newest_reports(tmp_path, "orders") == NewestReports(error="Stale file handle")

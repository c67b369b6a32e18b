"""Reports that only the copy of a bundle has: listed and given from an object store, which may be silent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from mirrorbook_airflow.object_store import ObjectFolder

from mirror_core.page import reports as page_reports
from mirror_core.page.reports import RemoteReports, ReportListing, ReportsUnreachable, ReportTooLarge, redact_location
from mirror_core.page.routes import render
from mirror_core.page.snapshots import ClusterSnapshots
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

T = TypeVar("T")
remote_reports = partial(RemoteReports, ObjectFolder)
URL = "memory://copies@bucket/evidence"
"""By a connection of that id."""
SHOWN = "memory://bucket/evidence"
INSIDE = ("index.html", "run.json", "prove/index.html")
OUTSIDE = ("salvage/orders.parquet", "salvage/_report.html", "entries.jsonl", "../run-other/index.html", "../top.html")


class Store(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """An object store in memory: its keys are texts, and `..` is one like any other."""

    store: dict[str, Any] = {}  # noqa: RUF012 - of this class alone
    pseudo_dirs = [""]  # noqa: RUF012


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(Store, "store", {})
    made = Store(skip_instance_cache=True)
    attach("memory", conn_id="copies", fs=made)
    for name in (*INSIDE, *OUTSIDE):
        made.pipe_file(f"/bucket/evidence/run-r/{name}", name.encode())
    made.pipe_file("/bucket/evidence/run-r2/index.html", b"of another run")
    return made


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A store that answers nothing until this is set; its threads end with the test."""
    go = threading.Event()

    def hang(*arguments: object, **options: object) -> list[str]:
        assert go.wait(60)
        return []

    monkeypatch.setattr(Store, "find", hang)
    yield go
    go.set()
    alive = (thread for thread in threading.enumerate() if thread.name == "mirrorbook-copies")
    wait_until(lambda: not any(thread.is_alive() for thread in alive), timeout_s=10, why="its threads have ended")


def test_pages_of_the_copy_are_listed_beside_those_of_this_machine(tmp_path: Path) -> None:
    assert remote_reports().list_reports(tmp_path, URL, "run-r") == ReportListing([], sorted(INSIDE))
    (tmp_path / "run-r").mkdir()
    (tmp_path / "run-r" / "index.html").write_text("here")
    assert remote_reports().list_reports(tmp_path, URL, "run-r") == ReportListing(
        ["index.html"], ["prove/index.html", "run.json"]
    )
    assert remote_reports().list_reports(tmp_path, None, "run-r") == ReportListing(["index.html"])
    assert not remote_reports().list_reports(tmp_path, URL, "run-none").copied


def test_a_page_of_this_machine_goes_before_its_copy(tmp_path: Path) -> None:
    assert remote_reports().read_report(tmp_path, URL, "run-r", "index.html") == b"index.html"
    (tmp_path / "run-r").mkdir()
    (tmp_path / "run-r" / "index.html").write_text("here")
    assert remote_reports().read_report(tmp_path, URL, "run-r", "index.html") == tmp_path / "run-r" / "index.html"
    assert remote_reports().read_report(tmp_path, None, "run-r", "run.json") is None


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        *(("run-r", name) for name in OUTSIDE),
        ("run-r", "/bucket/evidence/run-r2/index.html"),
        ("run-r", "prove/../index.html"),
        ("run-r", "missing.html"),
        ("run-r", ""),
        ("run-r/prove", "index.html"),
        ("run-r/..", "run-r2/index.html"),
        ("run-", "r/index.html"),
    ],
)
def test_nothing_else_is_given(tmp_path: Path, folder: str, name: str) -> None:
    for place in (URL, f"{URL}/"):
        assert remote_reports().read_report(tmp_path, place, folder, name) is None


def test_a_folder_that_all_machines_see_will_do(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "run-r").mkdir(parents=True)
    (shared / "run-r" / "index.html").write_text("there")
    (tmp_path / "secret.html").write_text("secret")
    (shared / "run-r" / "link.html").symlink_to(tmp_path / "secret.html")
    for place in (str(shared), f"file://{shared}"):
        assert remote_reports().list_reports(tmp_path, place, "run-r").copied == ["index.html", "link.html"]
        assert remote_reports().read_report(tmp_path, place, "run-r", "index.html") == shared / "run-r" / "index.html"
        assert remote_reports().read_report(tmp_path, place, "run-r", "link.html") is None
        assert remote_reports().read_report(tmp_path, place, "run-r", "../../secret.html") is None


def test_a_report_that_would_fill_the_memory_is_not_given(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_reports, "MAX_REPORT_BYTES", 1 << 20)
    store.pipe_file("/bucket/evidence/run-r/index.html", bytes(1 << 20))
    assert remote_reports().read_report(tmp_path, URL, "run-r", "index.html") == bytes(1 << 20)
    store.pipe_file("/bucket/evidence/run-r/index.html", bytes((1 << 20) + 1))
    with pytest.raises(ReportTooLarge, match=f"larger than 1 MiB: fetch it from {SHOWN}/run-r$"):
        remote_reports().read_report(tmp_path, URL, "run-r", "index.html")


class Brief(RemoteReports):
    """Waits briefly for a store, and for this machine as long as it takes."""

    def _run_in_thread(self, location: str, read: Callable[[], T]) -> T:
        self._timeout_s = 60.0 if location == page_reports.LOCAL_FOLDER_TEXT else 0.2
        return super()._run_in_thread(location, read)


def test_a_silent_store_is_said_and_holds_nobody_up(tmp_path: Path, hanging: threading.Event) -> None:
    (tmp_path / "run-r").mkdir()
    (tmp_path / "run-r" / "index.html").write_text("here")
    asked = Brief(ObjectFolder, max_parallel=2)
    begun_s = time.monotonic()
    found = [asked.list_reports(tmp_path, URL, "run-r") for _ in range(4)]
    assert time.monotonic() - begun_s < 30
    silent = ReportListing(["index.html"], error=f"{SHOWN}: no answer within 0.2 s")
    waiting = ReportListing(["index.html"], error=f"{SHOWN}: earlier questions still wait for its answer")
    assert found == [silent, silent, waiting, waiting]
    assert asked.read_report(tmp_path, URL, "run-r", "index.html") == tmp_path / "run-r" / "index.html", (
        "the store is not asked"
    )
    with pytest.raises(ReportsUnreachable, match="still wait"):
        asked.read_report(tmp_path, URL, "run-r", "run.json")
    hanging.set()
    wait_until(
        lambda: not asked.list_reports(tmp_path, URL, "run-r").error, timeout_s=10, why="the store answers again"
    )


def test_a_folder_of_this_machine_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()

    def hang(*arguments: object) -> list[str]:
        back.wait()
        return []

    monkeypatch.setattr(page_reports, "list_reports", hang)
    monkeypatch.setattr(page_reports, "find_report", hang)
    asked = remote_reports(timeout_s=0.2, max_parallel=2)
    silent = f"{page_reports.LOCAL_FOLDER_TEXT}: no answer within 0.2 s"
    assert asked.list_reports(tmp_path, None, "run-r") == ReportListing([], error=silent)
    with pytest.raises(ReportsUnreachable, match=silent):
        asked.read_report(tmp_path, URL, "run-r", "index.html")
    with pytest.raises(ReportsUnreachable, match="earlier questions still wait"):
        asked.read_report(tmp_path, URL, "run-r", "index.html")
    back.set()
    wait_until(lambda: not asked.list_reports(tmp_path, None, "run-r").error, timeout_s=10, why="it answers again")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied"), f"{SHOWN}/run-r cannot be read: Permission denied"),
        (RuntimeError("key AKIA-secret is refused"), f"{SHOWN}/run-r cannot be read: RuntimeError"),
    ],
)
def test_what_a_store_refuses_is_said_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(Store, "find", refuse)
    assert remote_reports().list_reports(tmp_path, URL, "run-r") == ReportListing([], error=words)


def test_a_file_system_that_this_airflow_does_not_know_is_said_without_what_logs_in_there(tmp_path: Path) -> None:
    found = remote_reports().list_reports(tmp_path, "what://user:secret@x/y/", "run-r").error
    assert found.startswith("what://x/y/: this Airflow knows no such file system")
    assert "secret" not in found
    assert redact_location("s3://aws_default@bucket/evidence/") == "s3://bucket/evidence"


def test_an_error_that_nobody_expects_is_said_by_its_name(tmp_path: Path) -> None:
    def broken(url: str) -> ObjectFolder:
        raise KeyError("password=secret")

    assert RemoteReports(broken).list_reports(tmp_path, URL, "run-r").error == (
        f"{SHOWN}: not expected: KeyError; see the log of the page's server"
    )


def shown(listing: ReportListing, copy_to: str | None = URL, trouble: str = "") -> str:
    clusters = ClusterSnapshots(0, {}, {}, trouble, copy_to=copy_to)
    return render("files", run="r/1", listing=listing, clusters=clusters, base="/proxy", root="/proxy/mirrorbook")


def test_the_page_says_which_reports_are_copies_and_why_none_is_listed() -> None:
    both = shown(ReportListing(["a.html"], ["<b>.html"]))
    assert '<a href="/proxy/mirrorbook/runs/r/1/files/a.html">a.html</a></li>' in both
    assert '/runs/r/1/files/%3Cb%3E.html">&lt;b&gt;.html</a> <span class="dim">from' in both
    assert "There is no report" not in both
    silent = shown(ReportListing([], error="s3://x: no answer within 5 s"))
    assert 'class="alarm">Copies of reports cannot be listed: s3://x: no answer within 5 s<' in silent
    assert "There is no report" not in silent, "nobody knows that"
    assert "and no copy of one" in shown(ReportListing([]))
    assert "set evidence.copy_to in mirrors.yaml" in shown(ReportListing([]), copy_to=None)
    assert format_sentence("not_known_where_copies_of_reports") in shown(ReportListing([]), None, "no Variable")


def test_a_share_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share, real, go = tmp_path / "share", page_reports.list_reports, threading.Event()
    share.mkdir()

    def reports(evidence: Path, folder: str) -> list[str]:
        assert evidence != share or go.wait(60)
        return real(evidence, folder)

    monkeypatch.setattr(page_reports, "list_reports", reports)
    try:
        assert "no answer" in remote_reports(timeout_s=0.2).list_reports(tmp_path, str(share), "run-r").error
    finally:
        go.set()


@pytest.mark.parametrize("hidden", ["", "run-r"])
def test_a_folder_that_this_user_may_not_read_is_said_and_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    (tmp_path / "share" / "run-r").mkdir(parents=True)
    real = os.scandir

    def scandir(path: str | Path) -> Any:
        if Path(path) == tmp_path / "share" / "run-r":
            raise PermissionError(13, "Permission denied", str(tmp_path / "share" / hidden))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = remote_reports().list_reports(tmp_path, str(tmp_path / "share"), "run-r")
    assert listing.error
    assert not listing.copied
    with pytest.raises(ReportsUnreachable):
        remote_reports().read_report(tmp_path, str(tmp_path / "share"), "run-r", "index.html")


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("s3://KEY:se/cr3t@bucket/evidence/", "s3://bucket/evidence"),
        ("s3://connection@bucket/evidence", "s3://bucket/evidence"),
        ("abfss://box@account.example/evidence", "abfss://box@account.example/evidence"),
    ],
)
def test_no_login_is_shown_and_a_container_is_none(place: str, shown: str) -> None:
    assert redact_location(place) == shown

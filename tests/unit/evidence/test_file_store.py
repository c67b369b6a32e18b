"""Folders that cannot be written to: an error of ours that says what, where, why, and what to do; exit code 2."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror_core.evidence import receipt_files
from mirror_core.evidence.file_store import LocalFolder, open_local_folder
from mirror_core.evidence.parity_report import write_parity_report
from mirror_core.evidence.run_report import write_run_report
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.files import Unwritable, check_writable, report_write_errors
from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityResult, ParityVerdict
from mirror_core.model.run import Plan, RunKind, RunMode
from mirror_core.model.task_messages import Receipt
from mirror_core.runbook.run_services import Services, local_services
from tests.support.memory_state import run_of


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A file where a folder is needed: not even root can write below it."""
    path = tmp_path / "taken"
    path.write_text("a file", encoding="utf-8")
    return path


def test_a_url_that_holds_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(BadRequest, match="holds a password") as refused:
        open_local_folder("s3a://key:hunter2@bucket/receipts")
    assert "hunter2" not in str(refused.value)


def test_what_where_why_and_what_to_do_are_said(taken: Path) -> None:
    with pytest.raises(Unwritable) as refused, report_write_errors("evidence", taken / "run-1", "give another folder"):
        (taken / "run-1").mkdir()
    assert str(refused.value) == f"evidence: {taken}/run-1 cannot be written: Not a directory: give another folder"
    assert refused.value.exit_code == 2


def test_asking_first_makes_nothing(tmp_path: Path, taken: Path) -> None:
    check_writable("receipts", tmp_path / "a" / "b", "give another")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    with pytest.raises(
        Unwritable, match=f"receipts: {taken}/a cannot be written: {taken} is not a folder: give another"
    ):
        check_writable("receipts", taken / "a", "give another")


def test_a_folder_without_the_right_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root has every right
    with pytest.raises(Unwritable, match=f"no right to write in {tmp_path}"):
        check_writable("receipts", tmp_path / "a", "give another")


@contextmanager
def full() -> Iterator[None]:
    """No file may be longer than 1 MiB, for the system: as on a disk on which no more is left."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_is_found_before_anything_is_written(tmp_path: Path) -> None:
    room = services(tmp_path)
    room.prepare_gate("r")
    with full():
        room.check_evidence()
        with pytest.raises(Unwritable, match=r"evidence: .*/run-r cannot be written: File too large: make room"):
            room.prepare_gate("r")
    assert [*(tmp_path / "run-r").iterdir()] == []


def test_a_gate_whose_report_cannot_be_written_says_what_it_saw_all_the_same(tmp_path: Path, taken: Path) -> None:
    """Applications stand still meanwhile."""
    asked: list[Path | None] = []

    def compare(
        source: ClusterIdentity,
        destination: ClusterIdentity,
        ranges: object,
        output: Path | None,
        on_progress: object = None,
    ) -> ParityResult:
        asked.append(output)
        if output is not None:
            write_parity(output)
        return ParityResult(verdict=ParityVerdict.FAILED, records=7, chunks=1, report=str(output or ""))

    east, west = (ClusterIdentity(ClusterName(name), f"id-of-{name}") for name in ("east", "west"))
    written = replace(services(tmp_path), quick_parity=compare).compare_at_gate(east, west, [], "r")
    assert written.report == str(tmp_path / "run-r" / "parity")
    found = replace(services(taken), quick_parity=compare).compare_at_gate(east, west, [], "r")
    assert (found.verdict, found.records) == (ParityVerdict.FAILED, 7)
    assert found.report.startswith(f"not written: evidence: {taken}/run-r cannot be written: ")
    (tmp_path / "run-s").mkdir()
    (tmp_path / "run-s" / "parity").write_text("a file")
    asked.clear()
    found = replace(services(tmp_path), quick_parity=compare).compare_at_gate(east, west, [], "s")
    assert asked == [tmp_path / "run-s" / "parity", None]
    assert found.report.startswith(f"not written: parity report: {tmp_path}/run-s/parity cannot be written: ")


def write_receipts(folder: Path) -> object:
    receipt = Receipt(
        mirror=MirrorName("m"),
        partition=Partition("t", 0),
        epoch=1,
        task=0,
        first=Offset(0),
        next=Offset(1),
        records=1,
        gaps=0,
        batches=1,
        bytes=80,
        pieces=(),
        source_topic_id="",
        destination_topic_id="",
        source_end=None,
        started_ms=1,
        ended_ms=2,
    )
    return receipt_files.write_receipts(
        LocalFolder(folder), MirrorName("m"), receipt_files.pack_receipts(1, 1, [receipt])
    )


def write_parity(folder: Path) -> object:
    result = ParityResult(verdict=ParityVerdict.PASSED, records=0, chunks=0)
    east, west = ClusterName("east"), ClusterName("west")
    return write_parity_report(folder, result, [], source=east, destination=west, level=3, started=0.0, demands=None)


def write_run(folder: Path) -> object:
    plan = Plan(kind=RunKind.FAILOVER, mirror=MirrorName("m"), mode=RunMode.PLANNED, steps=(), bound_facts=())
    return write_run_report(folder, run_of("r", plan), [], {}, {}, sides=("east", "west"), chronicle=())


def services(folder: Path) -> Services:
    return local_services(Path("mirrorbook.yaml"), evidence_dir=folder)


@pytest.mark.parametrize(
    "write",
    [
        write_receipts,
        write_parity,
        write_run,
        lambda folder: services(folder).run_dir("r"),
        lambda folder: services(folder).check_evidence(),
    ],
)
def test_whatever_is_kept_on_disk_says_so(taken: Path, write: Callable[[Path], Any]) -> None:
    with pytest.raises(MirrorError, match=r"cannot be written: .*make room and rights there") as refused:
        write(taken)
    assert refused.value.exit_code == 2


def test_a_link_in_place_of_a_runs_folder_is_refused(tmp_path: Path) -> None:
    """A bundle makes all files of its folder private, and copies them out."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "run-r").symlink_to(tmp_path / "secrets")
    with pytest.raises(MirrorError, match="run-r is a link") as refused:
        services(tmp_path).run_dir("r")
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("name", ["../other", "a/../../other", "/etc/other", ".."])
def test_a_name_that_leads_out_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    folder = LocalFolder(tmp_path / "folder")
    attempts: list[Callable[[], object]] = [
        lambda: folder.write("x", name, b"", ""),
        lambda: folder.read(name),
        lambda: folder.remove("x", name, ""),
    ]
    for attempt in attempts:
        with pytest.raises(BadRequest, match="leads out of it"):
            attempt()
    assert (tmp_path / "other").read_bytes() == b"x"

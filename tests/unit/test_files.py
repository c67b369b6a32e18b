"""Folders that cannot be written to: an error of ours that says what, where, why, and what to do; exit code 2."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_core.evidence import receipts
from mirror_core.evidence.parity_report import write_report
from mirror_core.evidence.run_report import write_run_report
from mirror_core.model.copying import Receipt
from mirror_core.model.errors import MirrorError
from mirror_core.model.files import Unwritable, check_writable, writing
from mirror_core.model.mirror import Desired
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity import ParityResult, Verdict
from mirror_core.model.run import Mode, Plan, Run, RunKind, RunState
from mirror_core.runbook.services import Services, local_services


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    """A file where a folder is needed: not even root can write below it."""
    path = tmp_path / "taken"
    path.write_text("a file", encoding="utf-8")
    return path


def test_what_where_why_and_what_to_do_are_said(taken: Path) -> None:
    with pytest.raises(Unwritable) as refused, writing("evidence", taken / "run-1", "give another folder"):
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
        digest="",
        source_end=None,
        started_ms=1,
        ended_ms=2,
    )
    return receipts.write(folder, MirrorName("m"), 1, 1, [receipt])


def write_parity(folder: Path) -> object:
    result = ParityResult(verdict=Verdict.PASSED, records=0, chunks=0)
    east, west = ClusterName("east"), ClusterName("west")
    return write_report(folder, result, [], source=east, destination=west, level=3, started=0.0, judge=False)


def write_run(folder: Path) -> object:
    plan = Plan(kind=RunKind.FAILOVER, mirror=MirrorName("m"), mode=Mode.PLANNED, steps=(), bound=())
    run = Run(
        id="r",
        plan=plan,
        plan_hash=plan.hash,
        state=RunState.RUNNING,
        started_by="",
        started_ms=0,
        desired=Desired.STARTED,
        conducted_by="",
    )
    return write_run_report(folder, run, [], {}, {})


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

"""What certificates prove of a promoted mirror: how much, why no more, and what must not pass for a success."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirror_core.decide import certificate_coverage
from mirror_core.decide.certificate_coverage import (
    CopyMismatch,
    build_coverage_evidence,
    check_as_copied,
    compute_coverage,
)
from mirror_core.decide.parity_result import LEVEL_DIGEST, NOTHING_COMPARED, ParityRow
from mirror_core.model.figures import FigureKey, FigureValue, list_values
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityResult, ParityVerdict
from mirror_core.model.run import RunState, StepEvidence, StepRecord, StepState
from mirror_core.model.task_messages import ReceiptPiece
from mirror_core.parity.certificate_check import CertificateTask
from mirror_core.runbook import snapshot_reader
from mirror_core.runbook.certification import DeadlineRunner
from mirror_core.runbook.set_conductor import MemberRun
from tests.support.mirror_views import RUN
from tests.support.sentences import format_sentence
from tests.support.waiting import patience

ONE, TWO, THREE = (Partition("orders", index) for index in range(3))
PASSED = ParityResult(verdict=ParityVerdict.PASSED, records=10, chunks=1)
SHORT = replace(PASSED, verdict=ParityVerdict.INDETERMINATE, reasons=("no receipt vouches for it",))
EMPTY = replace(SHORT, records=0, reasons=(NOTHING_COMPARED,))


def certified(evidence: StepEvidence) -> tuple[FigureValue, FigureValue]:
    return evidence[FigureKey.CERTIFIED_OFFSETS], evidence[FigureKey.CERTIFIABLE_OFFSETS]


def row(
    partition: Partition, start: int, end: int, dst_digest: str = "a", error: str = "", chunk: int = 0
) -> ParityRow:
    return ParityRow(
        partition=partition,
        chunk=chunk,
        start=Offset(start),
        end=Offset(end),
        level=LEVEL_DIGEST,
        src_count=end - start,
        dst_count=end - start,
        src_digest="a",
        dst_digest=dst_digest,
        error=error,
    )


def logs(*spans: tuple[Partition, int, int]) -> dict[Partition, tuple[Offset, Offset]]:
    return {partition: (Offset(start), Offset(end)) for partition, start, end in spans}


def test_offsets_are_proved_where_a_certificate_was_compared_equal_and_nowhere_else() -> None:
    rows = [
        row(ONE, 10, 20),
        row(ONE, 30, 40),
        row(ONE, 40, 50, dst_digest="b"),
        row(ONE, 50, 60, error="not read"),
        row(TWO, 0, 5),
        row(THREE, 0, 7, chunk=-1),
    ]
    found = compute_coverage(logs((ONE, 5, 70), (TWO, 0, 5), (THREE, 0, 7)), rows)
    assert (found[ONE].held_offsets, found[ONE].certified_offsets, found[ONE].uncertified) == (
        65,
        20,
        ((5, 10), (20, 30), (40, 70)),
    )
    assert (found[TWO].certified_offsets, found[TWO].uncertified) == (5, ())
    assert (found[THREE].certified_offsets, found[THREE].uncertified) == (0, ((0, 7),)), (
        "where a log ends proves nothing of its records"
    )


def test_all_of_it_is_proved_only_if_nothing_is_left_over() -> None:
    whole = compute_coverage(logs((ONE, 0, 10)), [row(ONE, 0, 10)])
    seen = build_coverage_evidence(whole, PASSED)
    assert (
        seen[FigureKey.CERTIFICATES_VERDICT],
        certified(seen),
        seen[FigureKey.NOT_PROVED],
        seen[FigureKey.NOT_PROVED_BECAUSE],
    ) == (
        "passed",
        (10, 10),
        (),
        (),
    )
    part = compute_coverage(logs((ONE, 0, 10), (TWO, 0, 10)), [row(ONE, 0, 10)])
    for result in (PASSED, SHORT):
        seen = build_coverage_evidence(part, result)
        assert (seen[FigureKey.CERTIFICATES_VERDICT], certified(seen)) == ("indeterminate", (10, 20))
        assert seen[FigureKey.NOT_PROVED] == ("orders-1: 10 of 10 offsets, [0, 10)",)
    seen = build_coverage_evidence(whole, PASSED, without_lmo=[TWO])
    assert (seen[FigureKey.CERTIFICATES_VERDICT], seen[FigureKey.NOT_PROVED]) == (
        "indeterminate",
        ("orders-1: its last mirrored offset is not known",),
    )


def test_without_a_certificate_nothing_is_proved() -> None:
    seen = build_coverage_evidence(compute_coverage(logs((ONE, 0, 10)), []), EMPTY)
    assert (seen[FigureKey.CERTIFICATES_VERDICT], certified(seen), seen[FigureKey.NOT_PROVED_BECAUSE]) == (
        "indeterminate",
        (0, 10),
        (NOTHING_COMPARED,),
    )
    assert build_coverage_evidence({}, PASSED)[FigureKey.CERTIFICATES_VERDICT] == "indeterminate", (
        "of an empty mirror nothing is proved either"
    )
    never = certificate_coverage.build_unknown_evidence("no certificate was stored")
    assert certificate_coverage.format_coverage(never) == "unknown: no certificate was stored"
    assert certificate_coverage.format_coverage({}) == "unknown"
    check_as_copied(("r", [reported(never)]))


def test_a_log_or_a_certificate_that_was_altered_is_said_first_and_is_no_success() -> None:
    finding = ParityFinding(partition=ONE, offset=Offset(0), kind="altered", detail="[0, 10) is not what was copied")
    failed = replace(PASSED, verdict=ParityVerdict.FAILED, findings=(finding,))
    held = compute_coverage(logs((ONE, 0, 10), (TWO, 0, 10)), [row(ONE, 0, 10, dst_digest="b"), row(TWO, 0, 10)])
    seen = build_coverage_evidence(held, failed)
    assert (seen[FigureKey.CERTIFICATES_VERDICT], certified(seen)) == ("failed", (10, 20))
    assert certificate_coverage.format_coverage(seen).startswith(
        "NOT AS IT WAS COPIED: orders-0: [0, 10) is not what was copied."
    )
    with pytest.raises(CopyMismatch, match=r"run r: orders-0: \[0, 10\) is not what was copied"):
        check_as_copied(("q", [reported(build_coverage_evidence(held, SHORT))]), ("r", [reported(seen)]))
    seen = build_coverage_evidence(held, replace(failed, findings=()), altered=["date=d/epoch-1.parquet"])
    assert seen[FigureKey.NOT_AS_COPIED] == ("certificate date=d/epoch-1.parquet is not as it was written",)


def test_of_many_reasons_the_first_are_said_and_how_many_there_are() -> None:
    many = replace(SHORT, reasons=tuple(f"reason {n}" for n in range(9)))
    seen = build_coverage_evidence(
        compute_coverage(logs((ONE, 0, 10)), []), many, left_out={ONE: "[0, 1): below the log's start"}
    )
    assert list_values(seen, FigureKey.NOT_PROVED_BECAUSE)[-2:] == ("reason 4", "and 5 more")


def reported(seen: StepEvidence) -> StepRecord:
    return StepRecord(run="r", step="report", state=StepState.DONE, attempt=1, started_ms=0, ended_ms=1, evidence=seen)


def task(*pieces: tuple[int, int]) -> CertificateTask:
    made = tuple((ONE, ReceiptPiece(first=Offset(a), next=Offset(b), records=b - a, digest="a")) for a, b in pieces)
    return CertificateTask(
        config_path=str(Path("m.yaml")),
        destination=ClusterIdentity(ClusterName("west"), "id"),
        pieces=made,
        compacted_topics=frozenset(),
    )


def test_what_was_read_in_time_counts_and_the_rest_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hang, began = threading.Event(), time.monotonic()
    come = {first: threading.Event() for first in (0, 10)}

    def read(asked: CertificateTask) -> Iterator[ParityRow]:
        for _, piece in asked.pieces:
            if piece.first >= 20:
                hang.wait(patience(60))
            yield row(ONE, piece.first, piece.next)
            if piece.first in come:
                come[piece.first].set()

    def soon() -> float:
        """No time passes before what does not hang has come."""
        assert all(one.wait(patience(60)) for one in come.values())
        return began

    monkeypatch.setattr(snapshot_reader, "time", SimpleNamespace(monotonic=soon))
    reading = DeadlineRunner(began + 1, read)
    try:
        rows = reading([task((0, 10), (20, 30), (30, 40)), task((10, 20))])
        assert [(r.start, bool(r.error)) for r in rows] == [(0, False), (20, True), (10, False)]
        assert rows[1].error in [f"not read: no complete answer within {seconds} s" for seconds in (0, 1)]
    finally:
        hang.set()
    found = compute_coverage(logs((ONE, 0, 40)), rows)
    assert (found[ONE].certified_offsets, found[ONE].uncertified) == (20, ((20, 40),))


def test_a_defect_while_reading_proves_nothing_and_is_named() -> None:
    def read(asked: CertificateTask) -> Iterator[ParityRow]:
        yield row(ONE, 0, 10)
        raise ZeroDivisionError

    rows = DeadlineRunner(time.monotonic() + patience(60), read)([task((0, 10), (10, 20))])
    assert [r.equal for r in rows] == [True, False]
    assert "a defect of Mirrorbook: ZeroDivisionError" in rows[1].error


def test_a_set_of_which_another_mirror_failed_names_what_is_not_as_it_was_copied() -> None:
    bad = {
        **certificate_coverage.build_unknown_evidence("x"),
        FigureKey.CERTIFIED_OFFSETS: 9,
        FigureKey.CERTIFIABLE_OFFSETS: 10,
        FigureKey.NOT_AS_COPIED: ("orders-0: [3, 4) is another",),
    }
    told = [MemberRun(replace(RUN, state=RunState.DONE), (reported(seen),)).outcome for seen in (bad, {})]
    assert told == [
        format_sentence("certificates_altered_offsets", "orders-0", "[3, 4)", 9, 10),
        "m: done",
    ]

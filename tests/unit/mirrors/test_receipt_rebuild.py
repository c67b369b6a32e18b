"""What a rebuild compares, and what it may vouch for then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.parity_result import LEVEL_DIGEST, ParityRow
from mirror_core.evidence.certificates import Coverage
from mirror_core.evidence.receipt_index import CheckedReceipts
from mirror_core.mirrors import receipt_maintenance
from mirror_core.mirrors.receipt_maintenance import RebuildQueue
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import ParityFinding, ParityRange, ParityResult, ParityVerdict
from mirror_core.model.task_messages import PIECE_OFFSETS, ReceiptPiece
from mirror_core.model.timing import now_ms
from mirror_core.parity.certificate_check import CertificateScope
from mirror_core.state.lease import find_live_lease
from mirror_core.state.state_records import PartitionRecord, State

MIRROR, ORDERS = MirrorName("m"), Partition("orders", 0)
STATUS = PartitionStatus(
    partition=ORDERS, state=PartitionState.MIRRORING, source_topic_id="5" * 32, destination_topic_id="d" * 32
)


def piece(first: int, end: int) -> ReceiptPiece:
    return ReceiptPiece(first=Offset(first), next=Offset(end), records=end - first, digest="0" * 32)


def scope(
    *pieces: ReceiptPiece, end: int = 100, generation: int = 3, reached: int = 80, headless: bool = False
) -> CertificateScope:
    return CertificateScope(
        "here",
        {ORDERS: (Offset(0), Offset(end))},
        {ORDERS: Coverage(pieces, None)},
        frozenset(),
        {},
        CheckedReceipts(readable=(), headless=headless),
        {ORDERS: (generation, 7, Offset(reached))},
    )


def state(*, copied: bool = False, lmo: int | None = None) -> State:
    made = State()
    made.put(PartitionRecord(MIRROR, replace(STATUS, lmo=None if lmo is None else Offset(lmo))))
    made.put(
        Lease(
            mirror=MIRROR,
            owner="elsewhere/1/x",
            generation=3,
            heartbeat_ms=now_ms() + 600_000,
            writers_until_ms=0,
            released=not copied,
        )
    )
    return made


def work(seen: State, found: CertificateScope, start: int = 0) -> RebuildQueue:
    return RebuildQueue(
        MIRROR, seen, replace(found, live_lease=find_live_lease(seen, MIRROR, None)), {ORDERS: Offset(start)}
    )


def spans(todo: RebuildQueue) -> list[list[tuple[int, int]]]:
    return [[(one.first, one.next) for one in mine] for pieces in todo.next_rounds() for mine in pieces.values()]


def test_all_that_nothing_vouches_for_is_compared_up_to_the_end() -> None:
    assert spans(work(state(), scope(piece(10, 20), piece(30, 40)))) == [[(0, 10)], [(20, 30)], [(40, 100)]]


def test_what_is_being_copied_is_left_to_who_copies_it() -> None:
    """A piece that reaches into his would be dropped for his."""
    assert spans(work(state(copied=True), scope(piece(10, 70)))) == [[(0, 10)], [(70, 80)]]
    todo = work(state(copied=True), scope(piece(10, 70), generation=2))
    assert (spans(todo), todo.may_retry) == ([], True)
    assert "try again in a minute" in todo.uncovered[ORDERS][0]


def test_behind_the_lmo_all_is_somebody_elses() -> None:
    assert spans(work(state(lmo=60), scope(piece(0, 50)))) == [[(50, 60)]]


@pytest.mark.parametrize(
    ("seen", "upto"), [(state(), 100), (state(copied=True), 100), (state(lmo=60), 60), (state(lmo=400), 100)]
)
def test_what_is_copied_behind_a_round_may_have_taken_a_record_of_it(
    monkeypatch: pytest.MonkeyPatch, seen: State, upto: int
) -> None:
    """A round ends where pieces end, and mirroring went on: the source may hold the newer record of a key behind it
    that both logs were cleaned by."""
    compared_ranges, todo = list[ParityRange](), scope(piece(10, 20))

    def compare(ranges: Sequence[ParityRange]) -> ParityResult:
        compared_ranges.extend(ranges)
        return ParityResult(verdict=ParityVerdict.INDETERMINATE, records=0, chunks=0)

    monkeypatch.setattr(receipt_maintenance, "read_certificate_scope", lambda link, state, folder: todo)
    monkeypatch.setattr(receipt_maintenance, "_list_source_starts", lambda link, partitions: {ORDERS: Offset(0)})
    monkeypatch.setattr(receipt_maintenance, "_build_tasks", lambda link, pieces, tasks: [])
    link, proof = SimpleNamespace(mirror=SimpleNamespace(name=MIRROR)), SimpleNamespace(tasks=1, run=lambda tasks: [])
    nothing: Any = None
    receipt_maintenance.rebuild_receipts(cast("Any", link), seen, nothing, cast("Any", proof), compare, nothing)
    assert (compared_ranges[0].start, compared_ranges[0].end) == (0, 10)
    assert {one.stopped_at for one in compared_ranges} == {upto}


def test_what_the_source_does_not_hold_is_left_and_no_rebuild_will_find_it() -> None:
    todo = work(state(), scope(piece(10, 20)), start=25)
    assert spans(todo) == [[(25, 100)]]
    assert todo.uncovered == {
        ORDERS: (
            "[0, 10): the source does not hold it any more",
            "[20, 25): the source does not hold it any more",
        )
    }
    assert not todo.may_retry


def test_what_has_no_head_is_compared_anew() -> None:
    assert spans(work(state(), scope(piece(0, 100), headless=True))) == [[(0, 100)]]


def judged(
    todo: RebuildQueue, compared: ParityResult, start: int = 0, error: str = "", later_error: str = ""
) -> list[tuple[int, int, int, str]]:
    good = list[tuple[int, int, int, str]]()
    for pieces in todo.next_rounds():
        rows = [
            ParityRow(
                partition=ORDERS,
                chunk=0,
                start=one.first,
                end=one.next,
                level=LEVEL_DIGEST,
                dst_count=7,
                dst_digest="f" * 32,
                error=error,
            )
            for one in pieces[ORDERS]
        ]
        if later_error:
            rows.append(replace(rows[-1], start=rows[-1].end, end=Offset(rows[-1].end + 1), error=later_error))
        found = todo.select_certified(pieces, rows, compared, {ORDERS: Offset(start)})
        good += [(one.first, one.next, one.records, one.digest) for one in found.get(ORDERS, ())]
    return good


SIZE = 3 * PIECE_OFFSETS


def compared(proven: int) -> ParityResult:
    return ParityResult(verdict=ParityVerdict.PASSED, records=1, chunks=1, verified_ends={ORDERS: Offset(proven)})


def test_what_was_compared_equal_is_vouched_for_as_the_destination_holds_it() -> None:
    todo = work(state(), scope(end=SIZE))
    assert judged(todo, compared(SIZE)) == [(n * PIECE_OFFSETS, (n + 1) * PIECE_OFFSETS, 7, "f" * 32) for n in range(3)]
    assert (todo.uncovered, todo.may_retry) == ({}, False)


@pytest.mark.parametrize(
    ("found", "start", "error", "words"),
    [
        (compared(0), 0, "", "could not be compared"),
        (
            replace(
                compared(0), findings=(ParityFinding(partition=ORDERS, offset=Offset(3), kind="value", detail="x"),)
            ),
            0,
            "",
            "differs from the source: value: x",
        ),
        (compared(SIZE), SIZE, "", "the source has deleted it meanwhile"),
        (compared(SIZE), 0, "unreadable", "unreadable"),
    ],
)
def test_nothing_else_is_vouched_for_and_all_of_it_is_looked_at(
    found: ParityResult, start: int, error: str, words: str
) -> None:
    todo = work(state(), scope(end=SIZE))
    assert judged(todo, found, start, error) == []
    assert len(todo.uncovered[ORDERS]) == 3
    assert words in todo.uncovered[ORDERS][0]
    assert todo.may_retry


def test_behind_a_piece_that_differs_the_rest_is_vouched_for() -> None:
    todo = work(state(), scope(end=SIZE))
    first = next(iter(todo.next_rounds()))
    rows = [
        ParityRow(partition=ORDERS, chunk=0, start=p.first, end=p.next, level=LEVEL_DIGEST, dst_digest="f")
        for p in first[ORDERS]
    ]
    good = todo.select_certified(first, rows, compared(PIECE_OFFSETS), {ORDERS: Offset(0)})
    assert [one.first for one in good[ORDERS]] == [0]
    assert spans(todo) == [[(2 * PIECE_OFFSETS, SIZE)]]


def test_what_could_not_be_read_elsewhere_in_the_partition_is_the_reason() -> None:
    todo = work(state(), scope(end=SIZE))
    assert judged(todo, compared(0), later_error="broken") == []
    assert todo.uncovered[ORDERS][0] == f"[0, {PIECE_OFFSETS}): broken"

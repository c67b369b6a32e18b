"""Receipts of days put together vouch for the same, and are told by fewer rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mirror_core.evidence import receipt_files
from mirror_core.evidence.certificates import Coverage, DatedPiece, compute_coverage, find_uncovered, make_blank_pieces
from mirror_core.evidence.receipt_files import (
    DestinationLogs,
    ReceiptRow,
    compact_day,
    find_newest_pieces,
    parse_pieces,
    parse_receipts,
)
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PIECE_OFFSETS, Receipt, ReceiptPiece
from tests.support.sample_receipts import ORDERS, receipt

DAY = "2026-09-21"
OURS, OTHER = frozenset({"d" * 32}), frozenset({"e" * 32})
LOGS = DestinationLogs({"orders": OURS}, frozenset(), {ORDERS: Offset(0)})


def rows_of(*told: tuple[int, Receipt]) -> list[ReceiptRow]:
    """Receipts, each with its generation."""
    made = list[ReceiptRow]()
    for generation, one in told:
        made += parse_receipts(receipt_files.pack_receipts(generation, one.epoch, [one]).content).to_pylist()
    return made


def together(rows: Sequence[ReceiptRow], logs: DestinationLogs = LOGS) -> list[ReceiptRow]:
    file, _ = compact_day(DAY, rows, logs, find_newest_pieces(rows))
    return parse_receipts(file.content).to_pylist() if file else []


def says(rows: Sequence[ReceiptRow], start: int = 0) -> Coverage:
    told = [DatedPiece(row["generation"], row["epoch"], piece) for row in rows for piece in parse_pieces(row)]
    return compute_coverage(told, start)


def test_receipts_that_follow_each_other_are_one_and_count_the_same() -> None:
    rows = rows_of((1, receipt(0, 10, gaps=1)), (1, receipt(10, 30, epoch=1)), (1, receipt(30, 30, epoch=2)))
    (whole,) = together(rows)
    assert (whole["first"], whole["next"], whole["epoch"]) == (0, 30, 2)
    assert (whole["records"], whole["gaps"], whole["bytes"], whole["batches"]) == (29, 1, 3000, 2)
    assert (whole["started"], whole["ended"]) == (rows[0]["started"], rows[2]["ended"])
    assert len(whole["pieces"]) == 1
    assert says([whole]) == says(rows)


def test_holes_and_other_generations_stay_apart() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(12, 20, epoch=1)), (2, receipt(20, 30, epoch=0)))
    assert [(row["first"], row["next"]) for row in together(rows)] == [(0, 10), (12, 20), (20, 30)]


def test_what_lies_below_the_logs_start_is_dropped_and_what_reaches_over_it_is_not() -> None:
    rows = rows_of((1, receipt(0, 10)), (2, receipt(10, 30, epoch=1)), (3, receipt(30, 50, epoch=2)))
    logs = replace(LOGS, starts={ORDERS: Offset(20)})
    assert [row["first"] for row in together(rows, logs)] == [10, 30]
    assert together(rows, replace(LOGS, starts={ORDERS: Offset(50)})) == []


def test_what_reaches_over_the_logs_start_takes_no_neighbour_with_it() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(10, 30, epoch=1)), (1, receipt(30, 50, epoch=2)))
    logs = replace(LOGS, starts={ORDERS: Offset(5)})
    (whole,) = together(rows, logs)
    assert len(whole["pieces"]) == 2
    assert says([whole], 5) == says(rows, 5)
    assert says([whole], 5).pieces[0].first == 10


def test_receipts_of_topics_that_are_gone_go_with_them_unless_that_is_not_known() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(0, 10, partition=Partition("gone", 0))))
    assert {row["topic"] for row in together(rows)} == {"orders"}
    assert together(rows, replace(LOGS, ids={"orders": OTHER})) == []
    assert len(together(rows, replace(LOGS, uncertain_topics=frozenset({"gone"})))) == 2


def test_nothing_is_taken_of_a_topic_that_some_broker_knows_or_may_know() -> None:
    rows = rows_of((1, receipt(0, 10)))
    for told, unseen, left in (
        (OTHER, (), 0),
        (OTHER | OURS, (), 1),
        (OTHER, ("orders",), 1),
        (frozenset[str](), ("orders",), 1),
        (frozenset[str](), (), 0),
    ):
        assert len(together(rows, replace(LOGS, ids={"orders": told}, uncertain_topics=frozenset(unseen)))) == left


def test_what_is_kept_where_the_logs_start_is_not_known_takes_no_neighbour_with_it() -> None:
    rows = rows_of((1, receipt(0, 10)), (1, receipt(10, 30, epoch=1)), (1, receipt(30, 50, epoch=2)))
    for told in (OTHER | OURS, frozenset[str]()):
        (whole,) = together(rows, DestinationLogs({"orders": told}, frozenset({"orders"}), {ORDERS: Offset(0)}))
        assert says([whole], 5) == says(rows, 5)


def test_what_was_told_anew_on_a_later_day_is_dropped() -> None:
    """A recopy into the same topic, or a source that has lost records."""
    old, new = rows_of((1, receipt(0, 10)), (1, receipt(10, 20, epoch=1))), rows_of((2, receipt(10, 15)))
    file, out = compact_day(DAY, old, LOGS, find_newest_pieces([*old, *new]))
    assert file is not None
    assert out == 1
    assert says([*parse_receipts(file.content).to_pylist(), *new]) == says([*old, *new])


def test_put_together_again_nothing_changes() -> None:
    rows = together(rows_of((1, receipt(0, 10)), (1, receipt(10, 30, epoch=1)), (2, receipt(40, 50))))
    file, out = compact_day(DAY, rows, LOGS)
    assert file is not None
    assert (parse_receipts(file.content).to_pylist(), out) == (rows, 0)


LENGTHS = st.lists(st.tuples(st.integers(0, PIECE_OFFSETS), st.integers(0, 3), st.integers(0, 2)), max_size=12)


@given(lengths=LENGTHS, cut=st.integers(0, 12))
def test_before_and_after_the_same_is_vouched_for_whatever_was_put_together(
    lengths: list[tuple[int, int, int]], cut: int
) -> None:
    """Epochs with holes, overlaps and new generations; of some days all, of the others nothing is put together."""
    at, generation, told = 0, 1, list[tuple[int, Receipt]]()
    for epoch, (length, hole, what) in enumerate(lengths):
        generation += what == 1
        first = max(0, at - 7) if what == 2 else at + hole
        told.append((generation, receipt(first, first + length, epoch=epoch)))
        at = first + length
    rows = rows_of(*told)
    old, new = rows[:cut], rows[cut:]
    file, _ = compact_day(DAY, old, LOGS, find_newest_pieces(rows))
    after = [*(parse_receipts(file.content).to_pylist() if file else []), *new]
    assert says(after) == says(rows)
    assert sum(row["records"] for row in after) == sum(row["records"] for row in rows)
    logs = defaultdict[int, int](int)
    for row in after:
        logs[row["generation"]] += 1
    assert len(after) <= len(rows)


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9))), start=st.integers(0, 40), size=st.integers(0, 40)
)
def test_what_is_vouched_for_and_what_is_not_are_together_all_there_is(
    spans: list[tuple[int, int]], start: int, size: int
) -> None:
    told = [
        DatedPiece(1, n, ReceiptPiece(first=Offset(first), next=Offset(first + length), records=0, digest="0"))
        for n, (first, length) in enumerate(spans)
    ]
    found = compute_coverage(told, start)
    rest = find_uncovered(found, Offset(start), Offset(start + size))
    covered = {offset for piece in found.pieces for offset in range(piece.first, piece.next)}
    assert [offset for first, end in rest for offset in range(first, end)] == [
        offset for offset in range(start, start + size) if offset not in covered
    ]


def test_pieces_to_be_read_are_cut_where_chunks_are() -> None:
    cut = make_blank_pieces((Offset(PIECE_OFFSETS - 5), Offset(2 * PIECE_OFFSETS)))
    assert [(piece.first, piece.next) for piece in cut] == [
        (PIECE_OFFSETS - 5, PIECE_OFFSETS),
        (PIECE_OFFSETS, 2 * PIECE_OFFSETS),
    ]
    assert [(piece.first, piece.next) for piece in make_blank_pieces((Offset(3), Offset(7)))] == [(3, 7)]

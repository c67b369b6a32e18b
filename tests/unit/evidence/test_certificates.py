"""Which pieces vouch for a log: the newest, without overlap, and added up where they are neighbours."""

from __future__ import annotations

import random

from mirror_core.evidence.certificates import (
    DatedPiece,
    UncoveredRange,
    choose_newest_pieces,
    compute_coverage,
    find_gaps,
    format_shortfall,
    merge_pieces,
)
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PIECE_OFFSETS, ReceiptPiece
from mirror_core.wire.batch import DIGEST_MODULUS


def piece(first: int, end: int, digest: int = 1) -> ReceiptPiece:
    return ReceiptPiece(first=Offset(first), next=Offset(end), records=end - first, digest=f"{digest:032x}")


def spans(pieces: tuple[ReceiptPiece, ...]) -> list[tuple[int, int]]:
    return [(one.first, one.next) for one in pieces]


def test_neighbours_of_a_chunk_are_one_and_their_digests_add_up() -> None:
    near = PIECE_OFFSETS - 10
    pieces = [
        piece(0, 5, DIGEST_MODULUS - 1),
        piece(5, near, 3),
        piece(near, near + 30, 4),
        piece(near + 30, near + 40, 5),
    ]
    found = merge_pieces(pieces)
    assert spans(found) == [(0, near + 30), (near + 30, near + 40)]
    assert found[0].records == near + 30
    assert int(found[0].digest, 16) == 6
    assert found[1] is pieces[3]


def test_the_order_in_which_pieces_were_told_says_nothing() -> None:
    told = [DatedPiece(1, number, piece(10 * number, 10 * number + 10, number)) for number in range(50)]
    wanted = choose_newest_pieces(told)
    for seed in range(20):
        random.Random(seed).shuffle(told)
        assert choose_newest_pieces(told) == wanted


def test_of_what_overlaps_the_newest_holds() -> None:
    """A recopy, or a source that has lost records: what an older task was told is not there any more."""
    told = [
        DatedPiece(1, 9, piece(0, 100)),
        DatedPiece(1, 10, piece(100, 200)),
        DatedPiece(2, 0, piece(90, 150)),
        DatedPiece(2, 0, piece(150, 160)),
    ]
    assert spans(choose_newest_pieces(told)) == [(90, 150), (150, 160)]
    assert spans(choose_newest_pieces([*told, DatedPiece(1, 3, piece(160, 170)), DatedPiece(1, 3, piece(80, 90))])) == [
        (80, 90),
        (90, 150),
        (150, 160),
        (160, 170),
    ]


def test_nothing_below_the_log_start_and_nothing_beyond_the_lmo_is_vouched_for() -> None:
    told = [DatedPiece(1, number, piece(10 * number, 10 * number + 10)) for number in range(6)]
    found = compute_coverage(told, 15, 50)
    assert spans(found.pieces) == [(20, 50)]
    assert (found.cut_piece, found.start, found.end) == ((10, 20), 20, 50)
    assert compute_coverage(told, 20).cut_piece is None
    assert compute_coverage(told, 0, 45).end == 40, "a piece is proved whole or not at all"


def test_holes_are_named() -> None:
    found = compute_coverage(
        [DatedPiece(1, 1, piece(0, 10)), DatedPiece(1, 2, piece(12, 20)), DatedPiece(1, 3, piece(20, 30))], 0
    )
    assert compute_coverage([], 0).end is None
    assert named(find_gaps(found, Offset(0), Offset(30), None)) == ([(10, 12)], [])


def named(
    found: tuple[tuple[UncoveredRange, ...], tuple[UncoveredRange, ...]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    unproved, left_out = found
    return [(gap.start, gap.end) for gap in unproved], [(gap.start, gap.end) for gap in left_out]


def test_what_a_log_holds_before_between_and_behind_its_receipts_is_unproved() -> None:
    found = compute_coverage([DatedPiece(1, 1, piece(10, 20)), DatedPiece(1, 2, piece(25, 30))], 0)
    assert named(find_gaps(found, Offset(0), Offset(100), None)) == ([(0, 10), (20, 25), (30, 100)], [])
    nothing = compute_coverage([], 0)
    assert named(find_gaps(nothing, Offset(40), Offset(100), None)) == ([(40, 100)], [])
    assert named(find_gaps(nothing, Offset(40), Offset(40), None)) == ([], []), (
        "an empty log holds nothing to be proved"
    )


def test_what_is_being_copied_now_is_none_of_the_verdicts() -> None:
    found = compute_coverage([DatedPiece(1, 1, piece(0, 20))], 0)
    assert named(find_gaps(found, Offset(0), Offset(100), Offset(20))) == ([], [(20, 100)])
    assert named(find_gaps(found, Offset(0), Offset(100), Offset(30))) == ([(20, 30)], [(30, 100)]), (
        "a receipt got lost"
    )
    assert named(find_gaps(compute_coverage([], 0), Offset(0), Offset(9), Offset(0))) == ([], [(0, 9)])


def test_the_rest_of_a_piece_of_which_the_log_has_lost_a_part_is_none_of_the_verdicts_and_what_follows_is() -> None:
    cut = [DatedPiece(1, 1, piece(0, 50))]
    whole = compute_coverage([*cut, DatedPiece(1, 2, piece(60, 80))], 40)
    assert named(find_gaps(whole, Offset(40), Offset(80), None)) == ([(50, 60)], [(40, 50)])
    alone = compute_coverage(cut, 40)
    assert named(find_gaps(alone, Offset(40), Offset(50), None)) == ([(40, 50)], []), (
        "then nothing at all would be proved"
    )


def test_how_much_is_not_vouched_for_is_said_with_the_remedy() -> None:
    held = {Partition("orders", n): (UncoveredRange(Offset(0), Offset(7), "why"),) for n in range(49)}
    text = format_shortfall(held, 50)
    assert "of 49 of 50 partitions" in text
    assert "343 offsets together" in text
    assert "`mirrorbook receipts rebuild`" in text

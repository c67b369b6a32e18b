"""Which pieces vouch for a log: the newest, without overlap, and added up where they are neighbours."""

from __future__ import annotations

import random

from mirror_core.evidence.certificates import Gap, Told, chosen, gaps, shortfall, together, vouched
from mirror_core.model.copying import PIECE_OFFSETS, Piece
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.digest import MODULUS


def piece(first: int, end: int, digest: int = 1) -> Piece:
    return Piece(first=Offset(first), next=Offset(end), records=end - first, digest=f"{digest:032x}")


def spans(pieces: tuple[Piece, ...]) -> list[tuple[int, int]]:
    return [(one.first, one.next) for one in pieces]


def test_neighbours_of_a_chunk_are_one_and_their_digests_add_up() -> None:
    near = PIECE_OFFSETS - 10
    pieces = [piece(0, 5, MODULUS - 1), piece(5, near, 3), piece(near, near + 30, 4), piece(near + 30, near + 40, 5)]
    found = together(pieces)
    assert spans(found) == [(0, near + 30), (near + 30, near + 40)]
    assert found[0].records == near + 30
    assert int(found[0].digest, 16) == 6
    assert found[1] is pieces[3]


def test_the_order_in_which_pieces_were_told_says_nothing() -> None:
    told = [Told(1, number, piece(10 * number, 10 * number + 10, number)) for number in range(50)]
    wanted = chosen(told)
    for seed in range(20):
        random.Random(seed).shuffle(told)
        assert chosen(told) == wanted


def test_of_what_overlaps_the_newest_holds() -> None:
    """A recopy, or a source that has lost records: what an older task was told is not there any more."""
    told = [
        Told(1, 9, piece(0, 100)),
        Told(1, 10, piece(100, 200)),
        Told(2, 0, piece(90, 150)),
        Told(2, 0, piece(150, 160)),
    ]
    assert spans(chosen(told)) == [(90, 150), (150, 160)]
    assert spans(chosen([*told, Told(1, 3, piece(160, 170)), Told(1, 3, piece(80, 90))])) == [
        (80, 90),
        (90, 150),
        (150, 160),
        (160, 170),
    ]


def test_nothing_below_the_log_start_and_nothing_beyond_the_lmo_is_vouched_for() -> None:
    told = [Told(1, number, piece(10 * number, 10 * number + 10)) for number in range(6)]
    found = vouched(told, 15, 50)
    assert spans(found.pieces) == [(20, 50)]
    assert (found.below, found.start, found.end) == ((10, 20), 20, 50)
    assert vouched(told, 20).below is None
    assert vouched(told, 0, 45).end == 40, "a piece is proved whole or not at all"


def test_holes_are_named() -> None:
    found = vouched([Told(1, 1, piece(0, 10)), Told(1, 2, piece(12, 20)), Told(1, 3, piece(20, 30))], 0)
    assert vouched([], 0).end is None
    assert named(gaps(found, Offset(0), Offset(30), None)) == ([(10, 12)], [])


def named(found: tuple[tuple[Gap, ...], tuple[Gap, ...]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    unproved, left_out = found
    return [(gap.start, gap.end) for gap in unproved], [(gap.start, gap.end) for gap in left_out]


def test_what_a_log_holds_before_between_and_behind_its_receipts_is_unproved() -> None:
    found = vouched([Told(1, 1, piece(10, 20)), Told(1, 2, piece(25, 30))], 0)
    assert named(gaps(found, Offset(0), Offset(100), None)) == ([(0, 10), (20, 25), (30, 100)], [])
    nothing = vouched([], 0)
    assert named(gaps(nothing, Offset(40), Offset(100), None)) == ([(40, 100)], [])
    assert named(gaps(nothing, Offset(40), Offset(40), None)) == ([], []), "an empty log holds nothing to be proved"


def test_what_is_being_copied_now_is_none_of_the_verdicts() -> None:
    found = vouched([Told(1, 1, piece(0, 20))], 0)
    assert named(gaps(found, Offset(0), Offset(100), Offset(20))) == ([], [(20, 100)])
    assert named(gaps(found, Offset(0), Offset(100), Offset(30))) == ([(20, 30)], [(30, 100)]), "a receipt got lost"
    assert named(gaps(vouched([], 0), Offset(0), Offset(9), Offset(0))) == ([], [(0, 9)])


def test_the_rest_of_a_piece_of_which_the_log_has_lost_a_part_is_none_of_the_verdicts_and_what_follows_is() -> None:
    cut = [Told(1, 1, piece(0, 50))]
    whole = vouched([*cut, Told(1, 2, piece(60, 80))], 40)
    assert named(gaps(whole, Offset(40), Offset(80), None)) == ([(50, 60)], [(40, 50)])
    alone = vouched(cut, 40)
    assert named(gaps(alone, Offset(40), Offset(50), None)) == ([(40, 50)], []), "then nothing at all would be proved"


def test_how_much_is_not_vouched_for_is_said_with_the_remedy() -> None:
    held = {Partition("orders", n): (Gap(Offset(0), Offset(7), "why"),) for n in range(49)}
    text = shortfall(held, 50)
    assert "of 49 of 50 partitions" in text
    assert "343 offsets together" in text
    assert "`mirrorbook receipts rebuild`" in text

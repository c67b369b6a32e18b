"""Where the pieces of a receipt are cut."""

from __future__ import annotations

from mirror_core.copy.outbox import Sent
from mirror_core.copy.tally import Tally
from mirror_core.decide.position import Resume


def taken_up(offset: int, gap_end: int) -> Tally:
    tally = Tally()
    resume = Resume(offset=offset, sequence=0, gap_end=gap_end, seed_end=offset, check_tail=False)
    tally.resume_at(resume, was=0, records=0, seeding=False, hiding=())
    return tally


def pieces(tally: Tally) -> list[tuple[int, int, int]]:
    return [(one.first, one.next, one.records) for one in tally.pieces]


def test_a_piece_begins_where_the_sources_log_does() -> None:
    """However many rounds its gap takes, and if the gap goes on behind it."""
    tally = taken_up(0, 41)
    for offsets in (20, 20, 5):
        tally.filled(offsets)
    tally.sent(Sent(45, 10, 100, 7))
    assert pieces(tally) == [(0, 41, 0), (41, 55, 10)]
    assert tally.gaps == 45


def test_other_gaps_cut_no_piece() -> None:
    tally = taken_up(41, 41)
    tally.sent(Sent(41, 10, 100, 7))
    tally.filled(5)
    tally.sent(Sent(56, 10, 100, 7))
    assert pieces(tally) == [(41, 66, 20)]

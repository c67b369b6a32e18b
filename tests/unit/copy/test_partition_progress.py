"""Where the pieces of a receipt are cut."""

from __future__ import annotations

from mirror_core.copy.partition_progress import ReceiptCounts
from mirror_core.copy.send_queue import SentBatch
from mirror_core.decide.gaps_and_resume import ResumePoint


def taken_up(offset: int, gap_end: int) -> ReceiptCounts:
    tally = ReceiptCounts()
    resume = ResumePoint(offset=offset, sequence=0, gap_end=gap_end, seed_end=offset, must_check_tail=False)
    tally.resume_at(resume, acknowledged=0, records=0, is_seeding=False, hidden_in_flight=())
    return tally


def pieces(tally: ReceiptCounts) -> list[tuple[int, int, int]]:
    return [(one.first, one.next, one.records) for one in tally.pieces]


def test_a_piece_begins_where_the_sources_log_does() -> None:
    """However many rounds its gap takes, and if the gap goes on behind it."""
    tally = taken_up(0, 41)
    for offsets in (20, 20, 5):
        tally.add_filled(offsets)
    tally.add_batch(SentBatch(45, 10, 100, 7))
    assert pieces(tally) == [(0, 41, 0), (41, 55, 10)]
    assert tally.gaps == 45


def test_other_gaps_cut_no_piece() -> None:
    tally = taken_up(41, 41)
    tally.add_batch(SentBatch(41, 10, 100, 7))
    tally.add_filled(5)
    tally.add_batch(SentBatch(56, 10, 100, 7))
    assert pieces(tally) == [(41, 66, 20)]

"""A reader of MirrorMaker's copy skips nothing in the new one, and is told how much it gets again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.names import Offset
from mirrorbook_tools.mirrormaker import start_offsets
from mirrorbook_tools.mirrormaker.start_offsets import ComparedRecord, StartCertainty, StartOffset, find_start_offset

EXACT, CLAMPED, UNKNOWN = StartCertainty.EXACT, StartCertainty.CLAMPED, StartCertainty.UNKNOWN


def make_log(contents: str, first: int = 0, step: int = 1) -> list[ComparedRecord]:
    return [ComparedRecord(first + step * n, content.encode()) for n, content in enumerate(contents)]


def find(old: Sequence[ComparedRecord], new: Sequence[ComparedRecord], committed: int, begin: int = 0) -> StartOffset:
    old_from = iter(old)
    return find_start_offset(old_from, iter(new), committed, Offset(begin), "orders-0")


def test_a_reader_in_the_middle_goes_on_at_the_same_record() -> None:
    found = find(make_log("abcd"), make_log("abcd", first=100), 2, 100)
    assert (found.certainty, found.offset, found.repeats) == (EXACT, 102, 0)


def test_a_reader_at_the_end_goes_on_behind_its_last_record() -> None:
    found = find(make_log("abcd"), make_log("abcdef", first=100), 4, 100)
    assert (found.certainty, found.offset) == (EXACT, 104)


def test_a_gap_of_the_source_moves_the_place() -> None:
    found = find(make_log("abcd"), make_log("abcd", first=100, step=3), 2, 100)
    assert (found.certainty, found.offset) == (EXACT, 104)  # the next record is at 106: between them is none


def test_what_mirror_maker_has_copied_twice_is_not_looked_for_twice() -> None:
    found = find(make_log("abcbcd"), make_log("abcde"), 6)
    assert (found.certainty, found.offset, found.repeats) == (EXACT, 4, 0)


def test_aborted_records_that_mirror_maker_has_copied_are_passed_over() -> None:
    for committed, offset in ((2, 2), (3, 2), (4, 3), (6, 4)):
        found = find(make_log("abXcdYe"), make_log("abcde"), committed)
        assert (found.certainty, found.offset, found.repeats) == (EXACT, offset, 0)


def test_where_a_record_is_lost_reading_begins_and_repeats_are_counted() -> None:
    found = find(make_log("abde"), make_log("abcdefgh"), 4)
    assert (found.certainty, found.offset, found.repeats) == (CLAMPED, 2, 2)
    assert found.reason is not None
    assert found.reason.code == "mm2_record_differs"


def test_a_record_that_mirror_maker_has_lost_is_read() -> None:
    found = find(make_log("xyw"), make_log("xyzw"), 2)
    assert (found.certainty, found.offset, found.repeats) == (CLAMPED, 2, 0)


def test_a_copy_that_is_behind_the_reader_is_said_to_be_behind() -> None:
    found = find(make_log("abcdef"), make_log("abc"), 5)
    assert (found.certainty, found.offset, found.repeats) == (CLAMPED, 3, 2)
    assert found.reason is not None
    assert found.reason.code == "mm2_not_copied_yet"


def test_too_much_to_compare_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_offsets, "MAX_COMPARED_RECORDS", 3)
    assert find(make_log("abc"), make_log("abc"), 3).certainty is EXACT
    found = find(make_log("abcd"), make_log("abcd"), 4)
    assert (found.certainty, found.offset) == (UNKNOWN, None)


@st.composite
def draw_copies(draw: st.DrawFn, alphabet: str) -> tuple[list[ComparedRecord], list[ComparedRecord], int]:
    """New copy, MirrorMaker's (repeats after restarts, records that it lost, aborted ones), a reader's offset."""
    contents = draw(st.lists(st.sampled_from(alphabet), max_size=12, unique=len(alphabet) > 12))
    new, offset = list[ComparedRecord](), 0
    for content in contents:
        offset += draw(st.integers(0, 2))
        new.append(ComparedRecord(offset, content.encode()))
        offset += 1
    copied = list[str]()
    position = 0
    while position < len(contents):
        if draw(st.integers(0, 7)) == 0 and position:
            position = draw(st.integers(0, position))  # restarted
        if draw(st.integers(0, 7)) == 0:
            copied.append(f"aborted {len(copied)}")
        if draw(st.integers(0, 9)):
            copied.append(contents[position])
        position += 1
    old = [ComparedRecord(n, content.encode()) for n, content in enumerate(copied)]
    return new, old, draw(st.integers(0, len(old)))


@given(draw_copies("abcdefghijklmnopqrstuvwxyz") | draw_copies("ab"))
def test_whatever_is_skipped_was_read(drawn: tuple[list[ComparedRecord], list[ComparedRecord], int]) -> None:
    new, old, committed = drawn
    found = find(old, new, committed)
    assert found.offset is not None
    skipped = Counter(record.content for record in new if record.offset < found.offset)
    read = Counter(record.content for record in old if record.offset < committed)
    assert skipped <= read
    if found.certainty is EXACT:
        assert found.repeats == 0


@given(draw_copies("abcdefghijklmnopqrstuvwxyz"))
def test_no_more_is_read_again_than_was_said(drawn: tuple[list[ComparedRecord], list[ComparedRecord], int]) -> None:
    new, old, committed = drawn
    found = find(old, new, committed)
    assert found.offset is not None
    assert found.repeats is not None
    read = {record.content for record in old if record.offset < committed}
    assert len(read & {record.content for record in new if record.offset >= found.offset}) <= found.repeats

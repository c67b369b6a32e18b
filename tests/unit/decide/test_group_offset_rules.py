"""Committed offsets on the destination: inside its log, following the source, taking nobody's progress back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.group_coverage import CommitOffset, KeepOffset, clamp_offset, decide_group_offset
from mirror_core.model.names import Offset

offsets = st.integers(0, 2**63 - 1).map(Offset) | st.integers(0, 20).map(Offset)
logs = st.tuples(offsets, offsets).map(lambda pair: (Offset(min(pair)), Offset(max(pair))))


@given(source=offsets, log=logs)
def test_clamped_offset_lies_in_the_destinations_log(source: Offset, log: tuple[Offset, Offset]) -> None:
    assert log[0] <= clamp_offset(source, *log) <= log[1]


@given(source=offsets, log=logs)
def test_nothing_that_is_in_the_log_is_skipped(source: Offset, log: tuple[Offset, Offset]) -> None:
    start, end = log
    unread = range(max(source, start), end)  # what the group has not read and the destination has
    assert not unread or clamp_offset(source, start, end) <= unread[0]


@given(source=offsets, log=logs, step=st.integers(0, 1000))
def test_clamp_never_goes_back_when_source_or_log_advance(
    source: Offset, log: tuple[Offset, Offset], step: int
) -> None:
    start, end = log
    before = clamp_offset(source, start, end)
    assert clamp_offset(Offset(source + step), start, end) >= before
    assert clamp_offset(source, start, Offset(end + step)) >= before
    assert clamp_offset(source, Offset(min(start + step, end)), end) >= before


@given(source=offsets, log=logs, there=offsets, own=st.frozensets(offsets, max_size=2))
def test_commit_is_inside_the_log_and_never_behind_somebodys_own_progress(
    source: Offset, log: tuple[Offset, Offset], there: Offset, own: frozenset[Offset]
) -> None:
    start, end = log
    decision = decide_group_offset(source=source, start=start, end=end, destination=there, own_commits=own)
    if isinstance(decision, CommitOffset):
        assert start <= decision.offset <= end
        assert decision.offset != there
        assert there in own or not decision.offset < there <= end
        assert decision.is_clamped == (decision.offset != source)
    else:
        assert decision.is_equal == (there == clamp_offset(source, start, end))
        assert decision.is_equal or decision.reason


def test_a_second_cycle_has_nothing_to_do() -> None:
    first = decide_group_offset(source=Offset(7), start=Offset(0), end=Offset(5), destination=None)
    assert first == CommitOffset(Offset(5), is_clamped=True)
    again = decide_group_offset(source=Offset(7), start=Offset(0), end=Offset(5), destination=first.offset)
    assert again == KeepOffset("", is_equal=True)


def test_a_group_set_back_on_the_source_is_set_back_on_the_destination() -> None:
    decision = decide_group_offset(
        source=Offset(2), start=Offset(0), end=Offset(9), destination=Offset(8), own_commits=[Offset(8)]
    )
    assert decision == CommitOffset(Offset(2), is_clamped=False)


def test_progress_on_the_destination_stays() -> None:
    for own in ([], [Offset(2)]):
        decision = decide_group_offset(
            source=Offset(2), start=Offset(0), end=Offset(9), destination=Offset(8), own_commits=own
        )
        assert isinstance(decision, KeepOffset)
        assert "8" in decision.reason


def test_a_commit_beyond_the_destinations_log_is_no_progress() -> None:
    decision = decide_group_offset(source=Offset(2), start=Offset(0), end=Offset(5), destination=Offset(8))
    assert decision == CommitOffset(Offset(2), is_clamped=False)

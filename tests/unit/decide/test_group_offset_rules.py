"""Committed offsets on the destination: inside its log, following the source, taking nobody's progress back."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.group_coverage import (
    CommitOffset,
    KeepOffset,
    LogBounds,
    clamp_offset,
    decide_group_offset,
)
from mirror_core.model.names import Offset

offsets = st.integers(0, 2**63 - 1).map(Offset) | st.integers(0, 20).map(Offset)
logs = st.tuples(offsets, offsets, st.none() | offsets).map(
    lambda drawn: LogBounds(Offset(min(drawn[:2])), Offset(max(drawn[:2])), drawn[2])
)


@given(source=offsets, log=logs)
def test_clamped_offset_lies_in_the_destinations_log(source: Offset, log: LogBounds) -> None:
    assert log.start <= clamp_offset(source, log) <= log.end


@given(source=offsets, log=logs)
def test_nothing_that_is_in_the_log_is_skipped(source: Offset, log: LogBounds) -> None:
    unread = range(max(source, log.start), log.end)  # what the group has not read and the destination has
    assert not unread or clamp_offset(source, log) <= unread[0]


@given(source=offsets, log=logs, step=st.integers(0, 1000))
def test_clamp_never_goes_back_when_source_or_log_advance(source: Offset, log: LogBounds, step: int) -> None:
    before = clamp_offset(source, log)
    assert clamp_offset(Offset(source + step), log) >= before
    assert clamp_offset(source, replace(log, end=Offset(log.end + step))) >= before
    assert clamp_offset(source, replace(log, start=Offset(min(log.start + step, log.end)))) >= before


@given(source=offsets, log=logs, there=offsets, own=st.frozensets(offsets, max_size=2))
def test_commit_is_inside_the_log_and_never_behind_somebodys_own_progress(
    source: Offset, log: LogBounds, there: Offset, own: frozenset[Offset]
) -> None:
    decision = decide_group_offset(source=source, log=log, destination=there, own_commits=own)
    if isinstance(decision, CommitOffset):
        assert log.start <= decision.offset <= log.end
        assert decision.offset != there
        assert there in own or not decision.offset < there <= log.end
        assert decision.is_clamped == (decision.offset != source)
    else:
        assert decision.is_equal == (there == clamp_offset(source, log))
        assert decision.is_equal or decision.reason


def test_a_second_cycle_has_nothing_to_do() -> None:
    first = decide_group_offset(source=Offset(7), log=LogBounds(Offset(0), Offset(5)), destination=None)
    assert first == CommitOffset(Offset(5), is_clamped=True)
    again = decide_group_offset(source=Offset(7), log=LogBounds(Offset(0), Offset(5)), destination=first.offset)
    assert again == KeepOffset("", is_equal=True)


def test_a_group_set_back_on_the_source_is_set_back_on_the_destination() -> None:
    decision = decide_group_offset(
        source=Offset(2), log=LogBounds(Offset(0), Offset(9)), destination=Offset(8), own_commits=[Offset(8)]
    )
    assert decision == CommitOffset(Offset(2), is_clamped=False)


def test_progress_on_the_destination_stays() -> None:
    for own in ([], [Offset(2)]):
        decision = decide_group_offset(
            source=Offset(2), log=LogBounds(Offset(0), Offset(9)), destination=Offset(8), own_commits=own
        )
        assert isinstance(decision, KeepOffset)
        assert "8" in decision.reason


def test_a_commit_beyond_the_destinations_log_is_no_progress() -> None:
    decision = decide_group_offset(source=Offset(2), log=LogBounds(Offset(0), Offset(5)), destination=Offset(8))
    assert decision == CommitOffset(Offset(2), is_clamped=False)


def test_what_somebody_committed_among_records_that_only_the_destination_has_stays() -> None:
    log = LogBounds(Offset(0), Offset(200), agreed_end=Offset(100))
    for theirs in (Offset(200), Offset(110)):
        decision = decide_group_offset(source=Offset(120), log=log, destination=theirs)
        assert isinstance(decision, KeepOffset)
        assert f"has committed {theirs}, which is ahead of 100; " in decision.reason
    for before, own in ((None, ()), (Offset(90), ()), (Offset(200), [Offset(200)]), (Offset(201), ())):
        decision = decide_group_offset(source=Offset(120), log=log, destination=before, own_commits=own)
        assert decision == CommitOffset(Offset(100), is_clamped=True)

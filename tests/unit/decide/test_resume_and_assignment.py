"""Where copying goes on, what may cross, who copies what: pure decisions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.batch_treatment import BatchTreatment, choose_treatment
from mirror_core.decide.gaps_and_resume import (
    FILLED_MASK,
    MAX_MARKED_START,
    NO_MARKER,
    BothLogBounds,
    ForeignWrite,
    OwnProducerState,
    ResumePoint,
    SourceLostRecords,
    choose_marker_epoch,
    count_filled,
    decide_resume_point,
    decode_filled,
    find_own_end,
    find_turn,
    limit_markers_in_flight,
    to_own_producer_state,
)
from mirror_core.decide.task_assignment import assign_partitions, rotate_partitions
from mirror_core.kafka.produce_link import ProduceOutcome, classify_produce_error
from mirror_core.model.names import Partition
from mirror_core.wire.batch import (
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    SEQUENCE_MASK,
    TRANSACTIONAL,
    BatchHeader,
)


def header(**changes: int) -> BatchHeader:
    dense = BatchHeader(100, 500, 0, 2, 0, 0, 9, 1, 2, -1, -1, -1, 10)
    return dense._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "position", "expected"),
    [
        ({}, 100, BatchTreatment.AS_IS),
        ({"attributes": 4}, 100, BatchTreatment.AS_IS),  # codecs don't matter
        ({}, 90, BatchTreatment.AS_IS),
        ({"attributes": TRANSACTIONAL}, 100, BatchTreatment.CLEARED),
        ({"attributes": DELETE_HORIZON}, 100, BatchTreatment.CLEARED),
        ({"record_count": 9}, 100, BatchTreatment.REENCODED),
        ({"attributes": LOG_APPEND_TIME}, 100, BatchTreatment.REENCODED),
        ({}, 104, BatchTreatment.REENCODED),
        ({}, 109, BatchTreatment.REENCODED),
        ({"magic": 1}, 100, BatchTreatment.OLD_FORMAT),
    ],
)
def test_each_batch_has_its_treatment(changes: dict[str, int], position: int, expected: BatchTreatment) -> None:
    assert choose_treatment(header(**changes), position, is_visible=True) is expected
    unseen = choose_treatment(header(**changes), position, is_visible=False)
    assert unseen is (BatchTreatment.OLD_FORMAT if expected is BatchTreatment.OLD_FORMAT else BatchTreatment.DROPPED)


DENSE = OwnProducerState(50, NO_MARKER)


def seen(
    ours: OwnProducerState | None = DENSE,
    *,
    log_start: int = 0,
    log_end: int = 50,
    source_start: int = 0,
    source_end: int = 80,
) -> BothLogBounds:
    return BothLogBounds(
        producer=ours, log_start=log_start, log_end=log_end, source_start=source_start, source_end=source_end
    )


def resumed(
    offset: int,
    sequence: int,
    *,
    gap_end: int | None = None,
    seed_end: int | None = None,
    check: bool = False,
    deleted_from: int | None = None,
) -> ResumePoint:
    return ResumePoint(
        offset=offset,
        sequence=sequence,
        gap_end=offset if gap_end is None else gap_end,
        seed_end=offset if seed_end is None else seed_end,
        must_check_tail=check,
        deleted_from=deleted_from,
    )


def marker(filled: int, attempt: int = 0) -> int:
    return filled << 3 | attempt


def test_the_log_end_is_the_position_when_our_records_end_there() -> None:
    assert decide_resume_point(seen()) == resumed(50, 50)


@given(st.integers(0, 2**40), st.integers(0, FILLED_MASK))
def test_behind_our_data_the_log_itself_tells_how_much_was_filled(records: int, filled_offsets: int) -> None:
    end, sequence = records + filled_offsets, records & SEQUENCE_MASK
    ours = to_own_producer_state(end, sequence)
    assert decide_resume_point(seen(ours, log_end=end, source_end=end)) == resumed(end, sequence)


offsets = st.integers(0, 2**40)
counts = st.integers(0, FILLED_MASK)


@given(st.integers(1, 2**40), st.integers(1, 1000))
def test_a_log_end_beyond_our_records_may_be_foreign_also_when_sequences_have_wrapped(end: int, extra: int) -> None:
    ours, log_end = OwnProducerState(end & SEQUENCE_MASK, NO_MARKER), end + extra
    # Markers that the broker has forgotten would look the same.
    found = decide_resume_point(seen(ours, log_end=log_end, source_end=log_end + 5))
    assert found == resumed(log_end, ours.next_sequence, check=True)
    stop = decide_resume_point(seen(ours, log_end=log_end, source_end=log_end - 1))
    assert isinstance(stop, SourceLostRecords)
    assert stop.must_check_tail


def test_a_broker_that_has_forgotten_all_but_the_newest_gap_wants_sequences_from_0() -> None:
    # 40 records and a gap of 5, of which the markers alone are remembered: 45 offsets that 5 filled ones don't explain
    assert decide_resume_point(seen(OwnProducerState(0, marker(5)), log_end=45)) == resumed(45, 0, check=True)


@given(st.integers(0, 2**40), counts, st.integers(0, 7), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_log_with_gaps_says_whether_its_newest_one_is_full(
    records: int, gaps: int, attempt: int, missing: int, extra: int
) -> None:
    """Sequences count records, markers count filled offsets: also where both have wrapped."""
    ours = OwnProducerState(records & SEQUENCE_MASK, marker(gaps, attempt))
    full = records + gaps
    end = max(full - missing, 0)
    assert decide_resume_point(seen(ours, log_end=end, source_end=full)) == resumed(
        end, ours.next_sequence, gap_end=full
    )
    if extra and ours.next_sequence:  # without data, what is known of us may be all since the broker forgot the rest
        found = decide_resume_point(seen(ours, log_end=full + extra, source_end=full + extra))
        assert found == ForeignWrite(full, gaps)


def test_a_half_filled_gap_beyond_the_sources_end_means_that_the_source_lost_records() -> None:
    found = decide_resume_point(seen(OwnProducerState(40, marker(60)), log_end=90, source_end=99))
    assert isinstance(found, SourceLostRecords)
    assert "ends at 99, before the position 100" in found.reason


@pytest.mark.parametrize(
    ("ours", "log_end", "own_end"),
    [
        (OwnProducerState(100, marker(50)), 150, 150),
        (OwnProducerState(100, marker(50)), 151, 150),
        (OwnProducerState(100, marker(50)), 149, None),
        (OwnProducerState(100, marker(50)), 120, None),
        (OwnProducerState(0, marker(50)), 50, 50),
        (OwnProducerState(0, marker(50)), 51, None),
        (OwnProducerState(100, NO_MARKER), 120, 100),
    ],
)
def test_where_our_own_records_end_is_known_unless_others_may_fill_our_gap(
    ours: OwnProducerState, log_end: int, own_end: int | None
) -> None:
    assert find_own_end(ours, log_end) == own_end


def test_without_producer_state_the_tail_must_be_compared_unless_there_is_none() -> None:
    assert decide_resume_point(seen(None)) == resumed(50, 50, check=True)
    assert decide_resume_point(seen(None, log_end=0)) == resumed(0, 0)
    assert decide_resume_point(seen(None, source_start=50)) == resumed(50, 50)
    assert decide_resume_point(seen(None, source_start=49)) == resumed(50, 50, check=True)
    empty = seen(None, log_start=50)  # such as behind a seed that was deleted: there is nothing that could be compared
    assert decide_resume_point(empty) == resumed(50, 50)
    assert decide_resume_point(seen(None, log_start=49)) == resumed(50, 50, check=True)


def test_a_source_shorter_than_the_position_has_lost_records() -> None:
    found = decide_resume_point(seen(source_end=40))
    assert isinstance(found, SourceLostRecords)
    assert found.position == 50
    assert "lost records" in found.reason
    assert not found.must_check_tail


def test_what_the_source_deleted_before_it_was_copied_is_a_gap() -> None:
    assert decide_resume_point(seen(source_start=60)) == resumed(50, 50, gap_end=60, deleted_from=50)
    assert decide_resume_point(seen(None, log_end=0, source_start=7)) == resumed(0, 0, gap_end=7, deleted_from=0)


def test_a_log_that_starts_far_away_is_seeded() -> None:
    near, far = 50 + MAX_MARKED_START, 50 + MAX_MARKED_START + 1
    assert decide_resume_point(seen(source_start=near, source_end=near)) == resumed(
        50, 50, gap_end=near, deleted_from=50
    )
    assert decide_resume_point(seen(source_start=far, source_end=far)) == resumed(50, 50, seed_end=far, deleted_from=50)


@given(st.integers(0, 60), st.integers(51, 2**40))
def test_a_hold_keeps_the_log_however_far_the_source_has_deleted(log_start: int, start: int) -> None:
    """Seeding deletes what is there. An empty log holds nothing."""
    logs = seen(log_start=min(log_start, 50), source_start=start, source_end=start)
    found = decide_resume_point(logs, holds_deletions=True)
    assert isinstance(found, ResumePoint)
    assert (found.seed_end > found.offset) == (logs.log_start == logs.log_end and start > 50 + MAX_MARKED_START)
    assert max(found.seed_end, found.gap_end) == start


@given(st.integers(53, 50 + 2 * MAX_MARKED_START))
def test_a_gap_half_filled_whose_end_the_source_has_deleted_is_filled_to_where_the_source_begins(start: int) -> None:
    half = OwnProducerState(45, marker(7))
    assert decide_resume_point(seen(half, source_start=52, source_end=start)) == resumed(50, 45, gap_end=52)
    found = decide_resume_point(seen(half, source_start=start, source_end=start))
    # What is half filled was a gap, or is counted already: it is from its old end on that something was deleted.
    assert found == resumed(50, 45, gap_end=start, deleted_from=52)


@given(offsets, counts)
def test_the_number_of_filled_offsets_survives_in_a_marker(records: int, gaps: int) -> None:
    count = count_filled(records + gaps, records & SEQUENCE_MASK)
    assert count == gaps
    epoch = choose_marker_epoch(count, NO_MARKER, is_owned=False)
    assert epoch is not None
    assert decode_filled(epoch) == gaps
    assert epoch < 2**31, "a coordinator epoch has 32 bits and a sign"


@pytest.mark.parametrize(
    ("newest", "owned", "epoch"),
    [
        (NO_MARKER, True, marker(5)),
        (NO_MARKER, False, marker(5, 1)),
        (marker(4, 7), True, marker(5)),  # a newer gap begins anew
        (marker(4, 7), False, marker(5, 1)),
        (marker(5, 1), True, marker(5, 1)),  # our own gap is continued
        (marker(5, 0), False, marker(5, 1)),  # somebody else's: shut them out
        (marker(5, 6), False, marker(5, 7)),
        (marker(5, 7), False, None),  # worn out
        (marker(6, 0), True, None),  # the count has wrapped
        (marker(6, 0), False, None),
    ],
)
def test_the_number_of_a_marker(newest: int, owned: bool, epoch: int | None) -> None:
    assert choose_marker_epoch(5, newest, is_owned=owned) == epoch


@given(st.integers(1, 10**6))
def test_there_is_always_room_for_one_more_marker_than_are_unanswered(missing: int) -> None:
    assert limit_markers_in_flight(missing) == (missing - 1 or 1)
    assert missing == 1 or limit_markers_in_flight(missing) < missing


def test_only_an_acknowledged_append_counts_and_unknown_codes_stop() -> None:
    assert classify_produce_error(0)[0] is ProduceOutcome.APPENDED
    assert [classify_produce_error(code)[0] for code in (6, 7, 20, 45, 52)] == [ProduceOutcome.RECHECK_LOG_END] * 5
    assert [classify_produce_error(code)[0] for code in (29, 31)] == [ProduceOutcome.DENIED] * 2
    assert classify_produce_error(31_000) == (ProduceOutcome.FAILED, "", "error 31000")


partitions = st.builds(Partition, st.sampled_from("abc"), st.integers(0, 50))


@given(st.dictionaries(partitions, st.integers(0, 10**9)), st.integers(1, 9))
def test_every_partition_is_assigned_once_and_no_task_is_empty(lags: dict[Partition, int], tasks: int) -> None:
    chosen = assign_partitions(lags, tasks)
    assert sorted(p for task in chosen for p in task) == sorted(lags)
    assert len(chosen) == min(tasks, len(lags))
    assert all(chosen)


def test_the_longest_lags_are_spread() -> None:
    lags = {Partition("t", i): lag for i, lag in enumerate([1000, 900, 100, 0])}
    heavy = [max(lags[p] for p in task) for task in assign_partitions(lags, 2)]
    assert sorted(heavy) == [900, 1000]


def test_who_has_least_gets_the_next_and_what_has_no_lag_weighs_a_little() -> None:
    def numbers(*lags: int, tasks: int) -> list[list[int]]:
        named = {Partition("t", index): lag for index, lag in enumerate(lags)}
        return [[partition.index for partition in task] for task in assign_partitions(named, tasks)]

    assert numbers(5_000, 2_000, 1_900, 1_000, tasks=2) == [[0], [1, 2, 3]]
    assert numbers(0, 0, 0, 0, tasks=2) == [[0, 2], [1, 3]]
    # Four that stand still weigh as much as one with a lag of 300.
    assert numbers(250, 0, 0, 0, 0, 0, tasks=2) == [[0, 5], [1, 2, 3, 4]]
    assert numbers(450, 0, 0, 0, 0, 0, tasks=2) == [[0], [1, 2, 3, 4, 5]]
    # A destination that is ahead is no credit for other work.
    assert numbers(50, 0, -10_000, -10_000, tasks=2) == [[0, 3], [1, 2]]


def test_equal_lags_are_always_shared_out_the_same_way() -> None:
    lags = {Partition(topic, index): 7 for topic in "ba" for index in (1, 0)}
    expected = ((Partition("a", 0), Partition("b", 0)), (Partition("a", 1), Partition("b", 1)))
    assert assign_partitions(lags, 2) == assign_partitions(dict(reversed(lags.items())), 2) == expected
    assert assign_partitions({}, 3) == ()


def test_turns_of_epochs_that_meet_are_apart_and_everyone_has_one() -> None:
    start = 1_795_300_000_000
    cycle = range(start, start + 4 * 2_000)
    turns = [{ms: at for ms in cycle if (at := find_turn(epoch, ms)) is not None} for epoch in range(7, 11)]
    for epoch, mine in enumerate(turns):
        lengths = Counter(mine.values())
        assert sorted(lengths.values()) == [80] * 4 + [600], (
            "one for short ways in each round, one for long ways in four"
        )
        others = {ms for number, other in enumerate(turns) if number != epoch for ms in other}
        assert all(ms + step not in others for ms in mine for step in range(-120, 121))


def test_no_two_turns_have_the_same_number() -> None:
    numbers = [find_turn(epoch, ms) for ms in range(0, 16_000) for epoch in range(4)]
    open_now = [number for number in numbers if number is not None]
    assert open_now == sorted(open_now)
    assert len(set(open_now)) == 8 * 5


def test_the_first_ones_come_first_and_everybody_at_some_time() -> None:
    ordered = [Partition("t", index) for index in range(37)]
    served = set[Partition]()
    for epoch in range(len(ordered)):
        found = rotate_partitions(ordered, 4 * epoch)
        assert sorted(found) == ordered, "all are there, once"
        assert set(ordered[:4]) <= set(found[:8]), "who is furthest behind does not wait for its turn"
        served.update(found[:8])
    assert served == set(ordered)
    assert rotate_partitions(ordered, 0) == tuple(ordered)
    assert rotate_partitions([], 3) == ()

"""What a mirror has before it: everything is counted once, and estimates err on the high side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.copy_estimate import (
    estimate_copy,
    format_copy_estimate,
    warn_few_replicas,
    warn_refused_settings,
)
from mirror_core.decide.gaps_and_resume import MAX_MARKED_START, BothLogBounds, ResumePoint, decide_resume_point
from mirror_core.decide.topic_settings import build_mirroring_configs
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Offset, Partition
from tests.support.sentences import format_sentence

P = [Partition("orders", index) for index in range(4)]


def seen(*logs: tuple[int, int], size: int | None = 1000) -> list[str]:
    """The words for logs of (start, end), each of this size."""
    starts = {P[index]: Offset(start) for index, (start, _) in enumerate(logs)}
    ends = {P[index]: Offset(end) for index, (_, end) in enumerate(logs)}
    return list(format_copy_estimate(estimate_copy(starts, ends, {} if size is None else dict.fromkeys(starts, size))))


def test_logs_that_begin_at_zero_need_no_words_about_beginnings() -> None:
    assert seen((0, 10), (0, 0)) == ["to copy: 2 partitions, 10 offsets, 2.0 kB"]


def test_late_beginnings_are_said_with_offsets_bytes_and_time() -> None:
    assert seen((0, 10), (3_000_000, 3_000_010), (MAX_MARKED_START, MAX_MARKED_START), (500_000_000, 500_000_001)) == [
        "to copy: 4 partitions, 21 offsets, 4.0 kB",
        format_sentence("seed_of_late_partitions", 2, "503,000,000", "452.7"),
        format_sentence("fill_of_late_partitions_in_mb", 1, "100,000", "7.8"),
        "before their first records are copied: 110 s or less (estimate)",
    ]


def test_hidden_records_take_less_room_and_wait_for_nothing() -> None:
    told = estimate_copy({P[0]: Offset(1000)}, {P[0]: Offset(1000)}, {}, GapFilling.HIDDEN)
    assert list(format_copy_estimate(told))[1:] == [
        format_sentence("fill_of_late_partitions_in_kb", 1, "1,000", "11.0"),
        "before their first records are copied: 1 s or less (estimate)",
    ]


@pytest.mark.parametrize(
    ("start", "words"),
    [(150_000, "1 s or less"), (10, "3 s or less"), (10**9, "4 min or less"), (10**11, "5 h 34 min or less")],
)
def test_time_is_rounded_up(start: int, words: str) -> None:
    assert words in seen((start, start))[-1]


def test_sizes_that_not_all_are_known_are_not_added_up() -> None:
    assert "bytes unknown" in seen((0, 10), size=None)[0]
    assert (
        estimate_copy({P[0]: Offset(0), P[1]: Offset(0)}, {P[0]: Offset(1), P[1]: Offset(1)}, {P[0]: 5}).total_bytes
        is None
    )


def test_a_log_without_room_for_a_record_at_each_offset_has_holes_and_what_they_take_is_said() -> None:
    logs = seen((0, 10), (0, 100_000_000), size=7_000_000)
    assert logs[1:] == [format_sentence("holes_offsets_or_more_hold", "99,000,000", 111, "7.7")]
    assert seen((0, 10), (0, 1_000_010), size=7_000_000)[1:] == [], "some: they take no time"
    assert seen((0, 100_000_000), size=700_000_000)[1:] == [], "room for all"


def test_more_holes_than_markers_can_fill_are_a_warning_that_names_hidden_records() -> None:
    *_, last = seen((0, 2**28 + 1_000_000), (0, 2**28 + 999_999), size=7_000_000)
    assert last == (format_sentence("more_holes_than_markers_fill", "orders-0", "268,435,455"))
    starts, ends = {P[0]: Offset(0)}, {P[0]: Offset(2**30)}
    hidden = list(format_copy_estimate(estimate_copy(starts, ends, {P[0]: 7}, GapFilling.HIDDEN)))
    assert [line.split(":")[0] for line in hidden] == ["to copy", "holes"]
    assert "4 min more, 11.8 GB" in hidden[1]


@given(st.integers(0, 3 * MAX_MARKED_START))
def test_who_seeds_and_who_marks_is_as_the_copying_task_decides(start: int) -> None:
    told = estimate_copy({P[0]: Offset(start)}, {P[0]: Offset(start)}, {})
    log = BothLogBounds(log_start=0, log_end=0, producer=None, source_start=start, source_end=start)
    resume = decide_resume_point(log)
    assert isinstance(resume, ResumePoint)
    assert (told.seeded_offsets, told.filled_offsets) == (resume.seed_end, resume.gap_end)


@pytest.mark.parametrize(("factor", "brokers"), [(3, 3), (5, 4), (1, 3), (1, 1)])
def test_replicas_need_no_words_where_two_take_a_record_or_the_source_has_but_one(factor: int, brokers: int) -> None:
    assert warn_few_replicas("west", {"orders": factor}, brokers) == []


def test_topics_whose_records_count_as_copied_on_one_broker_are_named() -> None:
    told = warn_few_replicas("west", {"orders": 3, "payments": 2, "one-disk": 1}, 2)
    assert told == [format_sentence("topics_of_two_replicas", 2, 2, "west", 1, 3)]
    assert build_mirroring_configs({}, 2)["min.insync.replicas"] == "1"
    assert build_mirroring_configs({}, 3)["min.insync.replicas"] == "2"
    assert "(t0, t1, t2, t3, t4 and 3 more)" in warn_few_replicas("west", {f"t{i}": 2 for i in range(8)}, 3)[0]
    assert "have no more than 1 on west" in warn_few_replicas("west", {"orders": 3}, 1)[0]


def test_a_setting_that_only_the_mirror_wants_is_not_said_to_be_missing_after_a_failover() -> None:
    """Promotion sets the source's value instead, and the sync says where that one would be refused."""
    refused = {"orders": {"flush.ms": "no", "message.timestamp.after.max.ms": "never"}}
    assert warn_refused_settings("west", refused) == [
        format_sentence("destination_refuses_flush_ms", "west"),
        "west refuses message.timestamp.after.max.ms of orders (never): copied without the mirror's value",
    ]

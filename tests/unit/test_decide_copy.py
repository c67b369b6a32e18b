"""Where copying goes on, what may cross, who copies what: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.assign import assign
from mirror_core.decide.passthrough import obstacle
from mirror_core.decide.position import Foreign, Resume, Seen, Stop, where_to_resume
from mirror_core.decide.produced import Meaning, meaning
from mirror_core.model.names import Partition
from mirror_core.wire.batch import (
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    SEQUENCE_MASK,
    TRANSACTIONAL,
    BatchHeader,
)


def header(**changes: int) -> BatchHeader:
    dense = BatchHeader(100, 500, 0, 2, 0, 0, 9, 1, 2, -1, -1, -1, 10)
    return dense._replace(**changes)


def test_a_dense_batch_at_the_position_crosses() -> None:
    assert obstacle(header(), 100) is None
    assert obstacle(header(attributes=4), 100) is None, "codecs don't matter"


@pytest.mark.parametrize(
    ("changes", "position", "offset", "word"),
    [
        ({"magic": 1}, 100, 100, "v1"),
        ({"attributes": CONTROL | TRANSACTIONAL}, 100, 100, "control batch"),
        ({"attributes": TRANSACTIONAL}, 100, 100, "transaction"),
        ({}, 90, 90, "90 to 99 hold no record"),
        ({"record_count": 9}, 100, 100, "compacted"),
        ({"attributes": DELETE_HORIZON}, 100, 100, "compacted"),
        ({"attributes": LOG_APPEND_TIME}, 100, 100, "LogAppendTime"),
        ({}, 104, 104, "inside the batch 100 to 109"),
    ],
)
def test_what_is_not_dense_is_named_and_located(changes: dict[str, int], position: int, offset: int, word: str) -> None:
    found = obstacle(header(**changes), position)
    assert found is not None
    assert found.offset == offset
    assert word in found.reason


def seen(**changes: int | None) -> Seen:
    facts: dict[str, int | None] = {
        "log_start": 0, "log_end": 50, "last_sequence": 49, "source_start": 0, "source_end": 80,
    }  # fmt: skip
    return Seen(**{**facts, **changes})  # type: ignore[arg-type]


def test_the_log_end_is_the_position_when_our_records_end_there() -> None:
    assert where_to_resume(seen()) == Resume(50, check_tail=False)


@given(st.integers(1, 2**40), st.integers(1, 1000))
def test_a_log_end_beyond_our_records_is_foreign_also_when_sequences_have_wrapped(end: int, extra: int) -> None:
    found = where_to_resume(
        seen(log_end=end + extra, last_sequence=(end - 1) & SEQUENCE_MASK, source_end=end + extra + 5)
    )
    assert found == Foreign(end)


def test_without_producer_state_the_tail_must_be_compared_unless_there_is_none() -> None:
    assert where_to_resume(seen(last_sequence=None)) == Resume(50, check_tail=True)
    assert where_to_resume(seen(last_sequence=None, log_end=0)) == Resume(0, check_tail=False)
    assert where_to_resume(seen(last_sequence=None, source_start=50)) == Resume(50, check_tail=False)


def test_a_source_shorter_than_the_position_has_lost_records() -> None:
    found = where_to_resume(seen(source_end=40))
    assert isinstance(found, Stop)
    assert found.offset == 40
    assert "lost records" in found.reason


def test_a_source_that_deleted_what_was_not_copied_stops_the_partition() -> None:
    found = where_to_resume(seen(source_start=60))
    assert isinstance(found, Stop)
    assert "deleted offsets 50 to 59" in found.reason


def test_a_log_that_does_not_start_at_zero_is_refused_for_now() -> None:
    found = where_to_resume(seen(log_end=0, last_sequence=None, source_start=7))
    assert isinstance(found, Stop)
    assert "starts at 7" in found.reason


def test_only_an_acknowledged_append_counts_and_unknown_codes_stop() -> None:
    assert meaning(0)[0] is Meaning.APPENDED
    assert [meaning(code)[0] for code in (6, 7, 20, 45)] == [Meaning.LOOK_AGAIN] * 4
    assert meaning(29)[0] is Meaning.DENIED
    assert meaning(31_000) == (Meaning.FAILED, "", "error 31000")


partitions = st.builds(Partition, st.sampled_from("abc"), st.integers(0, 50))


@given(st.dictionaries(partitions, st.integers(0, 10**9)), st.integers(1, 9))
def test_every_partition_is_assigned_once_and_no_task_is_empty(lags: dict[Partition, int], tasks: int) -> None:
    chosen = assign(lags, tasks)
    assert sorted(p for task in chosen for p in task) == sorted(lags)
    assert len(chosen) == min(tasks, len(lags))
    assert all(chosen)


def test_the_longest_lags_are_spread() -> None:
    lags = {Partition("t", i): lag for i, lag in enumerate([1000, 900, 100, 0])}
    heavy = [max(lags[p] for p in task) for task in assign(lags, 2)]
    assert sorted(heavy) == [900, 1000]

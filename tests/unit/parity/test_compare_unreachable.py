"""A partition that nobody can look at is named, and hides no other one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.decide.parity_result import LEVEL_RECORDS, ParityLogBounds, fill_missing_rows, judge_rows
from mirror_core.kafka import log_offsets
from mirror_core.kafka.log_offsets import OffsetPoint, OffsetsResult, explain_missing_offset, list_points_with_retry
from mirror_core.model.names import ClusterIdentity, ClusterName, Offset, Partition
from mirror_core.model.parity_verdict import ParityRange, ParityVerdict
from mirror_core.parity import check
from mirror_core.parity.compare import BothLogEnds, CompactedTopics, list_compacted_topics

EAST, WEST = (ClusterIdentity(ClusterName(name), f"id-of-{name}") for name in ("east", "west"))
WELL, LONE, LATE = Partition("a", 0), Partition("a", 1), Partition("a", 2)
NOTHING_CLEANED = CompactedTopics(frozenset(), frozenset())


def wanted(partition: Partition, unseen: str = "") -> ParityRange:
    end = Offset(0 if unseen else 9)
    return ParityRange(partition=partition, start=Offset(0), end=end, unreadable_reason=unseen)


def test_what_could_not_be_seen_is_in_doubt_and_the_rest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One when the scope was made, one when the comparison began."""
    asked = list[list[Partition]]()

    def read_ends(config: object, source: object, destination: object, partitions: list[Partition]) -> BothLogEnds:
        asked.append(partitions)
        both = ParityLogBounds(start=Offset(0), end=Offset(9))
        return BothLogEnds({WELL: (both, both)}, {LATE: "cluster west: its leader does not answer"})

    monkeypatch.setattr(check, "read_ends", read_ends)
    monkeypatch.setattr(check, "list_compacted_topics", lambda *asked: NOTHING_CLEANED)
    config = cast("Any", SimpleNamespace(pinned_cluster=lambda name: None))
    ranges = [wanted(WELL), wanted(LONE, "cluster east: nobody leads it"), wanted(LATE)]
    rows, shared = check.compare_ends(config, EAST, WEST, ranges)
    assert [one.partition for one in shared] == [WELL]
    assert asked == [[WELL, LATE]]
    found = judge_rows(ranges, fill_missing_rows(ranges, rows, LEVEL_RECORDS), LEVEL_RECORDS)
    assert found.verdict is ParityVerdict.INDETERMINATE
    assert {LONE, LATE} <= found.undecided_partitions
    said = " ".join(found.reasons)
    assert "a-1 [0, 0): cluster east: nobody leads it" in said
    assert "a-2 [0, 9): cluster west: its leader does not answer" in said
    assert (found.verified_ends[LONE], found.verified_ends[LATE]) == (0, 0)


def test_whether_topics_are_cleaned_is_asked_of_those_that_are_to_be_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned failover compares its last ends while applications stand still, and reads next to nothing."""
    here, new = ParityLogBounds(start=Offset(0), end=Offset(9)), Partition("new", 0)
    monkeypatch.setattr(check, "read_ends", lambda *asked: BothLogEnds({WELL: (here, here), new: (here, here)}, {}))
    asked = list[set[str]]()

    def cleaned_of(config: object, source: object, destination: object, topics: set[str]) -> CompactedTopics:
        asked.append(topics)
        return CompactedTopics(frozenset(topics), frozenset())

    monkeypatch.setattr(check, "list_compacted_topics", cleaned_of)
    config = cast("Any", SimpleNamespace(pinned_cluster=lambda name: None))
    nothing_new = replace(wanted(WELL), start=Offset(9), end=Offset(9))
    ranges = [nothing_new, replace(wanted(new), start=Offset(7), end=Offset(9))]
    rows, shared = check.compare_ends(config, EAST, WEST, ranges)
    assert asked == [{"new"}]
    assert [(one.partition, one.start, one.end, one.compacted) for one in shared] == [
        (WELL, 9, 9, False),
        (new, 7, 9, True),
    ]
    assert len(rows) == 2


def test_nobody_is_asked_whether_no_topic_is_cleaned() -> None:
    assert list_compacted_topics(cast("Any", None), EAST, WEST, ()) == NOTHING_CLEANED


@pytest.mark.parametrize(("elected", "asked"), [(True, 2), (False, None)])
def test_a_leader_that_is_elected_meanwhile_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, elected: bool, asked: int | None
) -> None:
    clock, looks = SimpleNamespace(now=0.0), list[OffsetPoint]()

    def led_offsets(client: object, partitions: object, point: OffsetPoint, *, within_s: float) -> OffsetsResult:
        looks.append(point)
        clock.now += 1
        known = {WELL: Offset(1), **({LONE: Offset(2)} if elected and len(looks) > 1 else {})}
        return OffsetsResult(known, frozenset({LONE}) - known.keys())

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(log_offsets, "list_available_offsets", led_offsets)
    monkeypatch.setattr(log_offsets, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    (found,) = list_points_with_retry(cast("Any", SimpleNamespace(timeout_s=5.0)), [WELL, LONE], [OffsetPoint.LOG_END])
    assert found.offsets[WELL] == 1
    assert (LONE in found.offsets) is elected
    if asked is not None:
        assert len(looks) == asked
    else:
        assert explain_missing_offset(ClusterName("east"), LONE, found) == "cluster east: nobody leads it"
        assert clock.now < 7, "within the client's limit"

"""What the source has deleted stays on the destination for the hold, whatever is seen when, and follows afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mirror_core.decide.deletion_hold import (
    EarlyDeletion,
    HoldDecision,
    HoldDecisions,
    LogStarts,
    decide_hold,
    decide_holds,
    find_compaction_start,
    find_early_deletions,
    format_held_deletions,
    format_hold,
    is_compaction_held,
    list_held_figures,
)
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureKey
from mirror_core.model.mirror import FailureKind, HeldDeletion, NeverCopied, PartitionState
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, MirrorName, Offset, Partition
from mirror_core.model.sync_state import TopicSettings
from tests.support.trimmed_partitions import status

HOUR_MS = 3_600_000
NEVER_COPIED: Final = NeverCopied(offsets=60, since_ms=1, newest_ms=1, first=Offset(0), next=Offset(60))
HOLD_MS = 24 * HOUR_MS


def held(first: int, end: int, since_ms: int = 0) -> HeldDeletion:
    return HeldDeletion(first=Offset(first), next=Offset(end), since_ms=since_ms)


def decide(
    recorded: HeldDeletion | None, source: int, destination: int, now_ms: int | None, hold_ms: int = HOLD_MS
) -> HoldDecision:
    return decide_hold(recorded, LogStarts(Offset(destination), Offset(source)), now_ms=now_ms, hold_ms=hold_ms)


def test_without_a_hold_a_deletion_is_followed_at_once() -> None:
    assert decide(None, 9, 3, None, 0) == HoldDecision(held=None, move_to=Offset(9))


def test_a_hold_that_was_taken_away_ends_at_once() -> None:
    assert decide(held(3, 9), 9, 3, None, 0) == HoldDecision(held=None, move_to=Offset(9))


def test_a_topic_that_is_emptied_at_once_is_whole_for_a_day_and_then_follows() -> None:
    first = decide(None, 1_000, 0, 5)
    assert first == HoldDecision(held=held(0, 1_000, 5))
    assert decide(first.held, 1_000, 0, HOLD_MS + 4) == first
    assert decide(first.held, 1_000, 0, HOLD_MS + 5) == replace(first, move_to=Offset(1_000))
    assert decide(first.held, 1_000, 1_000, HOLD_MS + 5) == HoldDecision(held=None)


def test_a_second_deletion_waits_for_the_first_and_has_a_day_of_its_own() -> None:
    first = held(0, 10)
    assert decide(first, 1_000, 0, HOLD_MS - 1) == HoldDecision(held=first)
    assert decide(first, 1_000, 0, HOLD_MS) == HoldDecision(held=first, move_to=Offset(10))
    assert decide(first, 1_000, 10, HOLD_MS) == HoldDecision(held=held(10, 1_000, HOLD_MS))


def test_what_the_source_has_again_is_not_deleted() -> None:
    assert decide(held(0, 1_000), 400, 0, HOLD_MS) == HoldDecision(held=held(0, 400), move_to=Offset(400))
    assert decide(held(0, 1_000), 0, 0, HOLD_MS) == HoldDecision(held=None)


def test_nothing_is_deleted_while_the_brokers_clock_is_unknown() -> None:
    assert decide(None, 9, 3, None) == HoldDecision(held=None)
    assert decide(held(3, 9), 9, 3, None) == HoldDecision(held=held(3, 9))


def test_heartbeats_are_not_held() -> None:
    beats, orders = Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0), Partition("orders", 0)
    starts = dict.fromkeys((beats, orders), LogStarts(Offset(0), Offset(7)))
    assert decide_holds({}, starts, now_ms=1, hold_ms=HOLD_MS) == HoldDecisions(
        changed={orders: held(0, 7, 1)}, due={beats: Offset(7)}
    )


def test_only_what_changes_is_recorded() -> None:
    orders = Partition("orders", 0)
    recorded = {orders: held(0, 7)}
    for now_ms, due in ((1, {}), (HOLD_MS, {orders: Offset(7)})):
        found = decide_holds(recorded, {orders: LogStarts(Offset(0), Offset(9))}, now_ms=now_ms, hold_ms=HOLD_MS)
        assert found == HoldDecisions(changed={}, due=due)
    found = decide_holds(recorded, {orders: LogStarts(Offset(7), Offset(7))}, now_ms=HOLD_MS, hold_ms=HOLD_MS)
    assert found == HoldDecisions(changed={orders: None}, due={})


@example([(90, 5, False), (23 * 60 + 45, 0, False), (24 * 60, 0, False)])
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 50), st.booleans()), min_size=1, max_size=120))
def test_nothing_is_deleted_before_its_hold_is_over_and_all_by_the_second_one(
    moves: list[tuple[int, int, bool]],
) -> None:
    """A source that deletes at any pace, processes that die after any call, before or after what they have to do."""
    now_ms, source, destination = 0, 0, 0
    recorded: HeldDeletion | None = None
    deleted_ms = dict[int, int]()
    longest_pause_ms = 0
    for minutes, offsets, dies in moves:
        now_ms += minutes * HOUR_MS // 60
        longest_pause_ms = max(longest_pause_ms, minutes * HOUR_MS // 60)
        deleted_ms |= dict.fromkeys(range(source, source + offsets), now_ms)
        source += offsets
        decision = decide(recorded, source, destination, now_ms)
        if decision.move_to is not None:
            assert all(deleted_ms[o] + HOLD_MS <= now_ms for o in range(destination, decision.move_to)), "early"
            destination = decision.move_to
        if not dies:
            recorded = decision.held
        if not any(move[2] for move in moves):
            late_ms = 2 * HOLD_MS + 3 * longest_pause_ms
            assert all(deleted_ms[o] + late_ms >= now_ms for o in range(destination, source)), "late"


def test_people_are_told_how_much_is_held_and_since_when() -> None:
    statuses = {
        Partition("orders", n): replace(status(Partition("orders", n), state=state), held_deletion=deletion)
        for n, state, deletion in (
            (0, PartitionState.MIRRORING, held(0, 5, HOUR_MS)),
            (1, PartitionState.MIRRORING, held(10, 1_010, 2 * HOUR_MS)),
            (2, PartitionState.MIRRORING, None),
            (3, PartitionState.STOPPED, held(0, 99)),
        )
    }
    assert dict(list_held_figures(statuses)) == {
        FigureKey.HELD_OFFSETS: 1_005,
        FigureKey.HELD_PARTITIONS: 2,
        FigureKey.HELD_SINCE_MS: HOUR_MS,
        FigureKey.HELD_RANGES: ("orders-1 [10, 1010)", "orders-0 [0, 5)"),
    }
    assert format_hold(statuses, HOLD_MS) == f"for 1 d: {format_held_deletions(statuses)}"
    assert format_hold({}, 36 * HOUR_MS) == "for 36 h: none now"
    assert format_hold({}, 0) == "none: deletions are followed at once"


def test_the_file_says_how_long_also_for_the_way_home(tmp_path: Path) -> None:
    path = tmp_path / "mirrorbook.yaml"
    head = "clusters:\n  east: {bootstrap.servers: '127.0.0.1:1'}\nmirrors:\n  m:\n    hold_deletions: "
    for text, hold_ms in (("24h", HOLD_MS), ("1 d", HOLD_MS), ("90m", 5_400_000), ("30s", 30_000), ("0", 0), ("0h", 0)):
        path.write_text(f"{head}{text}\n")
        config = load_config(path)
        assert [config.deletion_hold_ms(MirrorName(name)) for name in ("m", "m-back", "n")] == [hold_ms, hold_ms, 0]
    for wrong in ("24", "-1h", "1.5h", "24H", "day", "true", "[24h]", "''", "1h 30m", "2w", "null"):
        path.write_text(f"{head}{wrong}\n")
        with pytest.raises(BadRequest, match=r"m\.hold_deletions: .* must be a whole number with a unit"):
            load_config(path)


@pytest.mark.parametrize("recorded", [None, held(3, 9)])
def test_logs_that_begin_together_hold_nothing(recorded: HeldDeletion | None) -> None:
    assert decide(recorded, 9, 9, HOLD_MS) == HoldDecision(held=None)


def test_a_compaction_is_held_from_when_it_was_first_seen() -> None:
    settings = TopicSettings(mirror=MirrorName("m"), topic="t", overrides={})
    assert find_compaction_start(None, is_compacted=False, now_ms=7) is None
    assert find_compaction_start(None, is_compacted=True, now_ms=7) == 7
    assert find_compaction_start(settings, is_compacted=True, now_ms=7) == 7
    seen = replace(settings, compacted_since_ms=3)
    assert find_compaction_start(seen, is_compacted=True, now_ms=7) == 3
    assert find_compaction_start(seen, is_compacted=False, now_ms=7) is None
    assert not is_compaction_held(None, now_ms=7, hold_ms=10)
    assert not is_compaction_held(3, now_ms=3, hold_ms=0)
    assert is_compaction_held(3, now_ms=12, hold_ms=10)
    assert not is_compaction_held(3, now_ms=13, hold_ms=10)


@pytest.mark.parametrize(
    ("changes", "source", "expected"),
    [
        ({"followed_start": 0}, None, (0, 60)),
        ({"followed_start": 40}, None, (40, 60)),
        ({"followed_start": 60}, None, None),
        ({"followed_start": 0}, 50, (50, 60)),
        ({"followed_start": 0}, 70, None),
        ({"followed_start": 0, "source_start": 60}, None, None),
        ({"followed_start": 0, "source_start": None}, None, None),
        ({"followed_start": 0, "never_copied": NEVER_COPIED}, None, None),
        ({"followed_start": None}, None, None),
        ({"followed_start": 0, "state": PartitionState.FAILED, "kind": FailureKind.DELETED}, None, (0, 60)),
        ({"followed_start": 0, "state": PartitionState.FAILED, "kind": FailureKind.REPLACED}, None, None),
        ({"followed_start": 0, "partition": Partition(f"{HEARTBEAT_TOPIC_PREFIX}m", 0)}, None, None),
    ],
)
def test_what_only_the_destination_has_deleted_is_told_from_what_the_source_has_deleted_too(
    changes: dict[str, Any], source: int | None, expected: tuple[int, int] | None
) -> None:
    recorded = replace(status(), **changes)
    partition, source_starts = recorded.partition, {} if source is None else {recorded.partition: Offset(source)}
    deletions = find_early_deletions([recorded], {partition: Offset(60)}, source_starts)
    assert deletions == ({} if expected is None else {partition: EarlyDeletion(*map(Offset, expected))})

"""What the source deleted before it was copied, where it cannot be recorded at once, or another leader still has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.source_log import MAX_RECORD_WAIT_S
from mirror_core.dataplane import epoch_planner, epoch_results
from mirror_core.dataplane.epoch_planner import Planner
from mirror_core.decide.gaps_and_resume import sum_never_copied
from mirror_core.kafka.client import ClusterMetadata, Leader, TopicMetadata
from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionFailure, TaskReport
from mirror_core.state.state_records import PartitionRecord
from mirror_core.sync.mirror_topics import TopicPlacement
from tests.support.sentences import format_sentence
from tests.support.trimmed_partitions import (
    MIRROR,
    NAME,
    A,
    Clock,
    HeldState,
    ask,
    count,
    deletion,
    judged,
    replicator,
    reported,
    results,
    status,
)

# -- the driver ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [2, -2])
def test_deletions_are_dated_by_the_brokers_clock(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    made, lease = results(), HeldState(status())
    lease.clock_ahead_ms = hours * 3_600_000
    monkeypatch.setattr(epoch_results, "now_ms", lambda: 10_000_000 + lease.clock_ahead_ms)
    ask(made.claim_board, 50, 80)
    count(made, lease)
    never_copied = lease.never()
    assert never_copied is not None
    assert (never_copied.since_ms, never_copied.newest_ms) == (10_000_000, 10_000_000)


def test_what_a_failed_partition_missed_is_not_answered_before_it_is_recorded() -> None:
    made, lease = results(), HeldState(status(state=PartitionState.FAILED))
    ask(made.claim_board, 50, 80)
    count(made, lease)
    assert ask(made.claim_board, 50, 80) == []
    lease.put(PartitionRecord(NAME, status()))
    count(made, lease)
    assert sum_never_copied(lease.state.partitions[NAME].values()) == 30
    assert ask(made.claim_board, 50, 80) == [("orders", 0, 80)]


def test_what_is_not_recorded_when_the_driver_ends_is_said_by_name() -> None:
    said: list[str] = []
    made, lease = results(said), HeldState(status(state=PartitionState.FAILED))
    ask(made.claim_board, 50, 80)
    count(made, lease)
    assert said == []
    count(made, lease, final=True)
    assert said == [format_sentence("deletions_not_recorded_failed", "east", "orders-0", "[50, 80)")]


def test_so_it_is_where_the_state_topic_takes_nothing() -> None:
    said: list[str] = []
    made, lease = results(said), HeldState(status())
    lease.broken = True
    ask(made.claim_board, 50, 80)
    count(made, lease, final=True)
    assert said == [format_sentence("deletions_not_recorded", "east", "orders-0", "[50, 80)")]


def test_what_a_partition_missed_is_recorded_before_it_is_failed_by_the_same_report() -> None:
    made, lease = results(), HeldState(status())
    made._easing = cast("Any", SimpleNamespace(relax_topic=lambda *found: False))
    failure = PartitionFailure(partition=A, reason="r", offset=None, kind=FailureKind.OTHER)
    one = TaskReport(receipts=(), failures=(failure,), cpu_s=0.0, trimmed_ranges=(deletion(50, 80),))
    made.add_epoch(cast("Any", lease), 1, 0, (one,), partitions=frozenset(), newest_epoch=1, final=False)
    assert lease.state.partitions[NAME][A].state is PartitionState.FAILED
    assert sum_never_copied(lease.state.partitions[NAME].values()) == 30


# -- the task --------------------------------------------------------------------------------------------------------


def test_what_another_leader_still_has_is_copied_and_not_told() -> None:
    one = replicator(status(), told=True)
    judged(one, 50, 80)
    assert judged(one, 50, 50) is CopyState.READY
    assert one.progress.position == 50
    assert reported(one).trimmed_ranges == ()


def test_of_what_another_leader_has_in_part_the_rest_is_told() -> None:
    one = replicator(status(), told=True)
    judged(one, 50, 80)
    judged(one, 50, 90)
    assert one.trims.unrecorded == [(50, 80), (80, 90)]
    assert judged(one, 50, 60) is CopyState.LOST
    assert one.trims.unrecorded == [(50, 60)]
    one.trims.mark_recorded(60)
    assert judged(one, 50, 60) is CopyState.READY


@pytest.mark.parametrize("recorded", [False, True])
def test_what_is_passed_or_recorded_is_not_taken_back(recorded: bool) -> None:
    clock = Clock()
    one = replicator(status(), told=True, clock=clock)
    judged(one, 50, 80)
    if recorded:
        one.trims.mark_recorded(80)
    else:
        clock.now += MAX_RECORD_WAIT_S
        assert judged(one, 50, 80) is CopyState.READY
    one.trims.can_pass(None, 60, 80)
    assert reported(one).trimmed_ranges == (deletion(50, 80),)


# -- the plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "start", "position", "noted"),
    [
        (None, 30, 50, 30),
        (None, 50, 50, 50),
        (None, 80, 50, None),
        (None, 30, None, None),
        (10, 30, 50, 10),
    ],
    ids=["a copy was there", "just so far", "overtaken before", "nobody says how far it came", "known already"],
)
def test_a_copy_that_has_come_to_the_sources_log_start_counts_from_there(
    known: int | None, start: int, position: int | None, noted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version has not recorded it; and on the way home the copy is there before the first task."""
    here = {OffsetPoint.LOG_END: position, OffsetPoint.START: 0}
    there = {OffsetPoint.STABLE_END: 1_000, OffsetPoint.START: start}

    def offsets(
        client: Any, wanted: list[Partition], point: OffsetPoint, topics: Any = None
    ) -> dict[Partition, Offset]:
        at = (there if client is east else here)[point]
        return {} if at is None else dict.fromkeys(wanted, Offset(at))

    view = {side: TopicMetadata("orders", side, False, {0: Leader(1, 0)}, 1, 1) for side in "sd"}
    monkeypatch.setattr(epoch_planner, "_fetch_known_offsets", offsets)
    monkeypatch.setattr(epoch_planner, "list_mirror_topics", lambda link, client: {"orders": view["s"]})
    monkeypatch.setattr(
        epoch_planner, "create_missing_topics", lambda *asked: TopicPlacement({"orders": view["d"]}, (), {})
    )
    east: Any = SimpleNamespace(metadata=lambda names: ClusterMetadata("E", 1, {}, {}, frozenset()))
    link: Any = SimpleNamespace(mirror=MIRROR)
    state: Any = SimpleNamespace(mirrors={}, partitions={NAME: {A: status(start=known)}}, active_run=lambda name: None)
    work = Planner(link, east, cast("Any", object())).plan(state, all_ends=False)
    assert work.partitions[A].trim_recorded_until == noted
    assert [change.status.source_start for change in work.changes] == [noted]


@pytest.mark.parametrize("made", [False, True], ids=["all topics were there", "topics were made"])
def test_log_starts_are_asked_of_whom_the_plan_was_told_to_lead(made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50,000 partitions it costs more to ask who leads them than where they begin."""
    asked = list[tuple[Any, OffsetPoint, Any]]()

    def offsets(
        client: Any, wanted: list[Partition], point: OffsetPoint, topics: Any = None
    ) -> dict[Partition, Offset]:
        asked.append((client, point, topics))
        return dict.fromkeys(wanted, Offset(0))

    there, here = ({"orders": TopicMetadata("orders", side, False, {0: Leader(1, 0)}, 1, 1)} for side in "sd")
    rows: Any = ("a topic is made",) if made else ()
    monkeypatch.setattr(epoch_planner, "_fetch_known_offsets", offsets)
    monkeypatch.setattr(epoch_planner, "list_mirror_topics", lambda link, client: there)
    monkeypatch.setattr(epoch_planner, "create_missing_topics", lambda *asked: TopicPlacement(here, rows, {}))
    east: Any = SimpleNamespace(metadata=lambda names: ClusterMetadata("E", 1, {}, {}, frozenset()))
    west: Any = SimpleNamespace()
    link: Any = SimpleNamespace(mirror=MIRROR)
    state: Any = SimpleNamespace(mirrors={}, partitions={NAME: {A: status(start=10)}}, active_run=lambda name: None)
    planner = Planner(link, east, west)
    planner.follow_log_start(planner.plan(state, all_ends=False).partitions)
    expected = [(west, OffsetPoint.LOG_END, here), (east, OffsetPoint.STABLE_END, there)]
    expected += [
        (west, OffsetPoint.START, here),
        (east, OffsetPoint.START, there),
        (west, OffsetPoint.HIGH_WATERMARK, here),
    ]
    assert asked[-5:] == [(client, point, None if made else led) for client, point, led in expected]

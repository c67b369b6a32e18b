"""What the source deletes before it is copied is counted: each offset once, whoever dies, and recorded before it is
passed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.copy.driver_messages import ClaimClient
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.source_log import MAX_RECORD_WAIT_S
from mirror_core.copy.task_datagrams import DatagramKind, DriverChannel
from mirror_core.dataplane.counters import NeverCopiedCount
from mirror_core.dataplane.datagram_receiver import DatagramReceiver
from mirror_core.dataplane.epoch_planner import mark_aligned, to_assigned
from mirror_core.dataplane.epoch_results import EpochResults
from mirror_core.decide.gaps_and_resume import (
    count_deletion,
    count_deletions,
    find_counted_end,
    format_never_copied,
    sum_never_copied,
)
from mirror_core.model.errors import StateNotWritten
from mirror_core.model.mirror import NeverCopied, PartitionState
from mirror_core.model.names import Offset, Partition, get_heartbeat_topic
from mirror_core.model.task_messages import AlignedPartition, ListenAddress, TaskReport, TrimmedRange
from mirror_core.state.state_records import PartitionRecord
from tests.support.sentences import format_sentence
from tests.support.trimmed_partitions import (
    NAME,
    A,
    B,
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
from tests.support.waiting import wait_until


def never(offsets: int, first: int, end: int, since_ms: int = 1, newest_ms: int = 1) -> NeverCopied:
    return NeverCopied(offsets=offsets, since_ms=since_ms, newest_ms=newest_ms, first=Offset(first), next=Offset(end))


# -- the decision ----------------------------------------------------------------------------------------------------


def test_what_was_deleted_is_counted_once_whoever_tells_of_it_again() -> None:
    once = count_deletion(status(), deletion(50, 80), 1)
    assert once.never_copied == never(30, 50, 80)
    assert count_deletion(once, deletion(50, 80), 2) is once
    assert count_deletion(once, deletion(60, 80), 2) is once, "a task that had seeded some of it finds the rest"
    assert count_deletion(once, deletion(0, 10), 2) is once, "an old report"


def test_a_second_deletion_is_added_and_its_offsets_are_the_ones_that_are_named() -> None:
    twice = count_deletion(count_deletion(status(), deletion(50, 80), 1), deletion(200, 210), 7)
    assert twice.never_copied == never(40, 200, 210, newest_ms=7)


def test_a_deletion_that_goes_on_before_anything_was_copied_is_one() -> None:
    more = count_deletion(count_deletion(status(), deletion(50, 80), 1), deletion(50, 90), 7)
    assert more.never_copied == never(40, 50, 90, newest_ms=7)


def test_what_the_mirror_was_not_to_copy_does_not_count() -> None:
    assert count_deletion(status(start=40), deletion(10, 60), 1).never_copied == never(20, 40, 60)
    assert count_deletion(status(start=40), deletion(10, 40), 1).never_copied is None


def test_only_statuses_that_change_are_written() -> None:
    known = {A: status(), B: status(B)}
    told = [deletion(5, 9), deletion(1, 4), deletion(5, 9), deletion(1, 2, Partition("gone", 0))]
    fresh = count_deletions(known, told, 1)
    assert fresh.keys() == {A}
    assert fresh[A].never_copied == never(7, 5, 9)
    assert count_deletions(fresh, told, 2) == {}


def test_heartbeats_that_were_deleted_are_no_loss() -> None:
    beats = Partition(get_heartbeat_topic(NAME), 0)
    assert to_assigned(status(beats), hold_ms=0).trim_recorded_until is None
    assert count_deletions({beats: status(beats)}, [deletion(5, 9, beats)], 1) == {}


def test_the_words_have_the_worst_partition_first() -> None:
    statuses = {
        A: count_deletion(status(), deletion(5, 9), 1),
        B: count_deletion(status(B), deletion(1_000, 2_500), 60_000),
    }
    assert format_never_copied({A: status()}) == ""
    assert format_never_copied(statuses) == (
        format_sentence(
            "trimmed_offsets_of_partitions",
            "1,504",
            2,
            "1970-01-01 00:00:00 UTC",
            "orders-1",
            "1,500",
            "[1000, 2500)",
            "orders-0",
            4,
            "[5, 9)",
        )
    )


ACTS = ["write", "delete", "copy", "align", "told, not recorded", "recorded, not passed", "report again", "next epoch"]


@given(st.integers(0, 20), st.lists(st.tuples(st.sampled_from(ACTS), st.integers(1, 20)), max_size=40))
def test_whoever_dies_each_offset_is_counted_once(beginning: int, acts: list[tuple[str, int]]) -> None:
    """What is recorded, but for what is not passed yet, is what was deleted before it was copied."""
    known, start, end, position, lost = status(start=beginning), beginning, beginning, beginning, 0
    task, said = replicator(known, told=True), list[TrimmedRange]()
    for act, amount in acts:
        behind = position < start
        match act:
            case "write":
                end += amount
            case "delete":
                start = min(end, start + amount)
            case "copy" if not behind:
                position = min(end, position + amount)
            case "told, not recorded" if behind:
                task.trims.can_pass(position, start, position)
                task = replicator(known, told=True)
            case "align" | "recorded, not passed" if behind:
                task.trims.can_pass(position, start, position)
                said += task.trims.to_trimmed_ranges(A)
                known = count_deletions({A: known}, said, 1).get(A, known)
                task.trims.mark_recorded(start)
                assert task.trims.can_pass(position, start, position)
                if act == "align":
                    lost, position = lost + start - position, start
                else:
                    task = replicator(known, told=True)
            case "report again":
                known = count_deletions({A: known}, said, 1).get(A, known)
            case "next epoch":
                task = replicator(known, told=True)
        unpassed = max(0, (find_counted_end(known) or 0) - position)
        assert sum_never_copied([known]) == lost + unpassed


def test_copying_does_not_go_on_before_what_was_deleted_is_recorded() -> None:
    one = replicator(status(), told=True)
    assert judged(one, 50, 80) is CopyState.LOST
    assert "offsets below 80 were deleted there before they were copied" in one.lost_reason
    assert one.trims.unrecorded == [(50, 80)]
    assert judged(one, 50, 80) is CopyState.LOST
    assert reported(one).trimmed_ranges == (deletion(50, 80),)
    one.trims.mark_recorded(80)
    assert judged(one, 50, 80) is CopyState.READY
    assert one.progress.position == 80, "what is copied is as before"


def test_more_that_is_deleted_meanwhile_is_recorded_too() -> None:
    one = replicator(status(), told=True)
    judged(one, 50, 80)
    one.trims.mark_recorded(80)
    assert judged(one, 50, 90) is CopyState.LOST
    assert one.trims.unrecorded == [(80, 90)]
    one.trims.mark_recorded(90)
    assert judged(one, 50, 90) is CopyState.READY


def test_where_no_driver_answers_copying_goes_on_after_a_while_and_the_report_tells() -> None:
    clock = Clock()
    one = replicator(status(), told=True, clock=clock)
    assert judged(one, 50, 80) is CopyState.LOST
    clock.now += MAX_RECORD_WAIT_S
    assert judged(one, 50, 80) is CopyState.READY
    assert reported(one).trimmed_ranges == (deletion(50, 80),)


def test_without_a_driver_a_task_leaves_the_partition_to_the_next_one_that_begins_behind_what_is_recorded() -> None:
    clock = Clock()
    one = replicator(status(), told=False, clock=clock)
    assert judged(one, 50, 80) is CopyState.LOST
    clock.now += MAX_RECORD_WAIT_S
    assert judged(one, 50, 80) is CopyState.LOST
    assert one.trims.is_blocked
    [known] = count_deletions({A: status()}, reported(one).trimmed_ranges, 1).values()
    assert judged(replicator(known, told=False), 50, 80) is CopyState.READY


def test_what_is_recorded_is_not_told_again_by_the_next_task() -> None:
    known = count_deletion(status(), deletion(50, 80), 1)
    one = replicator(known, told=True)
    assert judged(one, 50, 80) is CopyState.READY
    assert reported(one).trimmed_ranges == ()


def test_a_new_mirror_begins_where_the_sources_log_begins_and_misses_nothing() -> None:
    new = replicator(status(start=None), told=True)
    assert judged(new, 0, 80) is CopyState.READY
    found = reported(new)
    assert found.trimmed_ranges == ()
    assert found.aligned[0].source_start is None, "it has not come so far yet"
    case = new.start_gap_round()
    case.add_filled(80, 8 << 3)
    new.finish_gap_round(case)
    assert reported(new).aligned[0].source_start == 80
    one = replicator(mark_aligned(status(start=None), reported(new).aligned[0]), told=True)
    assert judged(one, 100, 130) is CopyState.LOST
    assert one.trims.unrecorded == [(100, 130)]


def test_a_task_that_has_come_to_the_beginning_itself_misses_what_is_deleted_then() -> None:
    one = replicator(status(start=None), told=False)
    judged(one, 40, 40)
    one.mark_lost("offset out of range")
    judged(one, 40, 60)
    assert reported(one).trimmed_ranges == (deletion(40, 60),)


def test_the_beginning_is_recorded_once_and_nothing_else_is_forgotten() -> None:
    found = AlignedPartition(partition=A, source_epoch=3, source_start=Offset(70))
    begun = mark_aligned(status(start=None), found)
    assert (begun.source_start, begun.source_epoch) == (70, 3)
    lost = count_deletion(begun, deletion(90, 95), 1)
    later = mark_aligned(lost, replace(found, source_start=Offset(95)))
    assert (later.source_start, later.never_copied) == (70, never(5, 90, 95))
    assert to_assigned(later, hold_ms=0).trim_recorded_until == 95
    assert to_assigned(begun, hold_ms=0).trim_recorded_until == 70


def reports(made: EpochResults, lease: HeldState, *deletions: TrimmedRange) -> None:
    one = TaskReport(receipts=(), failures=(), cpu_s=0.0, trimmed_ranges=deletions)
    made.add_epoch(cast("Any", lease), 1, 0, (one,), partitions=frozenset(), newest_epoch=1, final=False)


def test_the_driver_records_what_it_is_told_says_it_and_only_then_answers() -> None:
    said: list[str] = []
    made, lease = results(said), HeldState(status())
    assert ask(made.claim_board, 50, 80) == []
    count(made, lease)
    found = lease.never()
    assert found is not None
    assert (found.offsets, found.first, found.next) == (30, 50, 80)
    assert ask(made.claim_board, 50, 80) == [("orders", 0, 80)]
    assert said == [format_sentence("cluster_deleted_uncopied_offsets", "east", 30, "orders-0", 30)]
    assert made.summary.never_copied == {A: 30}
    assert made.counters.snapshot().never_copied == {"orders": NeverCopiedCount(30, found.newest_ms)}


def test_the_report_and_the_next_driver_do_not_count_it_again() -> None:
    made, lease = results(), HeldState(status())
    ask(made.claim_board, 50, 80)
    count(made, lease)
    reports(made, lease, deletion(50, 80))
    count(made, lease)
    after, before = results(), lease.writes
    ask(after.claim_board, 50, 80)
    count(after, lease)
    assert ask(after.claim_board, 50, 80) == [("orders", 0, 80)], "whoever waits for it goes on"
    assert sum_never_copied(lease.state.partitions[NAME].values()) == 30
    assert lease.writes == before


def test_what_was_recorded_of_a_topic_is_not_recorded_of_the_one_that_is_copied_in_its_place() -> None:
    made, lease = results(), HeldState(status())
    ask(made.claim_board, 50, 80)
    count(made, lease)
    ask(made.claim_board, 80, 90)
    reports(made, lease, deletion(90, 95))
    made.copies.begin({A}, 1)
    made.forget_copies({A})
    lease.put(PartitionRecord(NAME, status()))  # without anything that was never copied
    assert ask(made.claim_board, 0, 70, epoch=1) == [], "an old task waits until its end"
    reports(made, lease, deletion(80, 95))
    count(made, lease)
    assert lease.never() is None
    assert ask(made.claim_board, 0, 60, epoch=2) == [], "it is not recorded yet"
    count(made, lease)
    assert sum_never_copied(lease.state.partitions[NAME].values()) == 60
    assert ask(made.claim_board, 0, 60, epoch=2) == [("orders", 0, 60)]


def test_while_the_state_topic_takes_nothing_nothing_is_answered_and_nothing_forgotten() -> None:
    made, lease = results(), HeldState(status(), status(B))
    lease.broken = True
    ask(made.claim_board, 50, 80)
    reports(made, lease, deletion(7, 9, B))
    with pytest.raises(StateNotWritten):
        count(made, lease)
    assert ask(made.claim_board, 50, 80) == []
    count(made, lease, final=True)  # on the way out nothing is raised
    lease.broken = False
    count(made, lease)
    assert sum_never_copied(lease.state.partitions[NAME].values()) == 32


def test_what_a_failed_partition_missed_is_recorded_when_it_is_copied_again() -> None:
    """Until then somebody else may write its status."""
    failed = status(state=PartitionState.FAILED)
    made, lease = results(), HeldState(failed)
    reports(made, lease, deletion(50, 80))
    count(made, lease)
    assert lease.never() is None
    lease.put(PartitionRecord(NAME, status()))
    count(made, lease)
    assert sum_never_copied(lease.state.partitions[NAME].values()) == 30


def test_a_task_that_waits_goes_on_when_its_driver_has_recorded_it() -> None:
    made, lease = results(), HeldState(status())
    one = replicator(status(), told=True)
    judged(one, 50, 80)
    with (
        DatagramReceiver(ListenAddress(), {DatagramKind.CLAIMS: made.claim_board.handle}) as channel,
        closing(DriverChannel(1, channel.address_for(1))) as line,
    ):
        task = ClaimClient(line)

        def heard() -> bool:
            task.exchange({A: one})
            return bool(made.claim_board.get_unrecorded_trims())

        wait_until(heard, timeout_s=10, why="the driver is told")
        assert judged(one, 50, 80) is CopyState.LOST
        count(made, lease)

        def answered() -> bool:
            task.exchange({A: one})
            return not one.trims.unrecorded

        wait_until(answered, timeout_s=10, why="the task hears that it is recorded")
    assert judged(one, 50, 80) is CopyState.READY
    assert made.claim_board.get_unrecorded_trims() == ()

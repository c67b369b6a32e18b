"""Who looks at the log in one turn does not act on it in another; and who is too far away for any turn says so."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mirror_core.copy.gap_filler import GapRound, GapRoundResponse, LogEndQuery, MarkerWrite
from mirror_core.copy.messages import ClusterSide
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.task_messages import PartitionAssignment

WEST = ClusterName("west")
ONE = Partition("t", 0)
ROUND_S, CYCLE_S = 2.0, 8.0
"""Of turns; a task has a long one in each cycle."""


@dataclass
class Clock:
    """Of epoch 0, whose turns begin each round at 0, and the long one each cycle at 0.8 s."""

    now: float = 80_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def newcomer(clock: Clock) -> PartitionReplicator:
    """Behind offset 7 there is a gap of one offset, which nobody has filled for long."""
    one = PartitionReplicator(
        PartitionAssignment(partition=ONE, source_topic_id="a", destination_topic_id="b"), clock=clock
    )
    one.resume_at(ResumePoint(offset=7, sequence=7, gap_end=7, seed_end=7, must_check_tail=False))
    one.source.readable_end = 8
    one.skip_to(8)
    assert one.due_gap is not None
    assert not may_fill(one, clock)
    clock.now += CYCLE_S
    assert may_fill(one, clock)
    return one


def may_fill(one: PartitionReplicator, clock: Clock) -> bool:
    case = one.start_gap_round()
    found = case.can_fill(clock.now, 0.0)
    one.finish_gap_round(case)
    return found


def gap_round(clock: Clock, round_trip_s: float) -> GapRound:
    return GapRound(
        destination=ClusterSide(WEST, "mirror"),
        producer_id=1,
        producer_epoch=0,
        epoch=0,
        until=float("inf"),
        is_stale=lambda age: False,
        round_trip_s=lambda: round_trip_s,
        monotonic=clock,
        wall=clock,
    )


def first(clock: Clock, newcomer: PartitionReplicator, *, answer_takes_s: float) -> LogEndQuery | MarkerWrite | None:
    """What comes after the look."""
    case = newcomer.start_gap_round()
    filling = gap_round(clock, answer_takes_s).run([case])
    assert isinstance(next(filling), LogEndQuery)
    clock.now += answer_takes_s
    try:
        return filling.send(GapRoundResponse(ends={ONE: (ErrorCode.none, 7)}))
    except StopIteration:
        newcomer.finish_gap_round(case)
        return None


BEGINNINGS = [
    (0.0, 0.01, True),
    (0.0, 0.09, False),
    (0.3, 0.01, False),  # others' turns
    (0.0, ROUND_S, False),  # one's own, but the next
    (0.8, 0.2, True),
    (0.8, 0.55, True),
    (1.3, 0.2, False),
    (0.8, CYCLE_S, False),
    (ROUND_S + 0.8, 0.2, False),  # another's long one
]
"""When a look is asked for, how long its answer takes, and whether markers may follow."""


@pytest.mark.parametrize(("at", "takes", "may"), BEGINNINGS)
def test_look_and_marker_are_of_one_turn(
    clock: Clock, newcomer: PartitionReplicator, at: float, takes: float, may: bool
) -> None:
    clock.now += at
    assert isinstance(first(clock, newcomer, answer_takes_s=takes), MarkerWrite) is may


@pytest.mark.parametrize(("at", "looks"), [(0.3, True), (0.5, False), (0.79, False), (0.8, True)])
def test_a_look_does_not_miss_the_turn_that_begins_meanwhile(
    clock: Clock, newcomer: PartitionReplicator, at: float, looks: bool
) -> None:
    clock.now += at
    assert (next(gap_round(clock, 0.4).run([newcomer.start_gap_round()]), None) is not None) is looks


def test_a_destination_that_is_too_far_away_for_any_turn_is_named(clock: Clock, newcomer: PartitionReplicator) -> None:
    assert first(clock, newcomer, answer_takes_s=0.7) is None
    assert newcomer.state is CopyState.LOST
    assert "cluster west, t-0, offset 7: the gap there was another copier's" in newcomer.lost_reason
    assert "an answer takes 700 ms, and must not take 600" in newcomer.lost_reason


def test_a_far_log_is_watched_for_longer(clock: Clock) -> None:
    one = PartitionReplicator(
        PartitionAssignment(partition=ONE, source_topic_id="a", destination_topic_id="b"), clock=clock
    )
    assert not one.gap_claim.is_quiet(7, clock.now, clock.now, 0.2)
    assert not one.gap_claim.is_quiet(7, clock.now + 1.7, clock.now + 1.7, 0.2)
    assert one.gap_claim.is_quiet(7, clock.now + 1.9, clock.now + 1.9, 0.2)

"""Live figures: the newest word counts, unknown is a value, rates survive epochs and dead attempts."""

from __future__ import annotations

import json

import pytest

from mirror_core.copy.driver_messages import ClaimBoard, CurrentCopies
from mirror_core.copy.task_datagrams import Datagram, DatagramKind
from mirror_core.dataplane.datagram_receiver import build_handlers
from mirror_core.dataplane.progress import ProgressTracker, ReportedEnds, TaskProgress
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.source_observation import ObservedTopic, SourceObservation
from mirror_core.model.timing import MAX_FRESH_AGE_S

A, B = Partition("orders", 0), Partition("orders", 1)
Row = tuple[Partition, int, int | None, int, int]
"""Partition, position, the source's end, records, bytes."""


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def told(at: float, *rows: Row, task: int = 0, epoch: int = 1, to_seed: int = 0) -> tuple[TaskProgress, int]:
    listed = [(p.topic, p.index, position, end, records, size, to_seed, 0) for p, position, end, records, size in rows]
    return TaskProgress(task=task, t=at, rows=listed), epoch


def tell(progress: ProgressTracker, clock: Clock, at: float, *rows: Row, apart_s: float = 0.0, epoch: int = 1) -> None:
    """At once. `apart_s`: how far the task's clock is ahead."""
    clock.now = at
    progress.update(*told(at + apart_s, *rows, epoch=epoch))


def test_positions_lags_and_rates_add_up_over_tasks() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    progress.update(*told(1000, (A, 10, 25, 10, 1000)))
    progress.update(*told(1000, (B, 70, 70, 30, 500), task=1))
    clock.now = 1002
    progress.update(*told(1002, (A, 20, 25, 20, 2000)))
    totals = progress.totals()
    assert (totals.partitions, totals.unknown, totals.lag) == (2, 0, 5)
    assert (totals.records, totals.bytes) == (50, 2500)
    assert (totals.records_per_s, totals.bytes_per_s) == (25, 1250)
    figures = progress.partitions()
    assert (figures[A].position, figures[A].source_end, figures[A].lag) == (20, 25, 5)
    assert (figures[B].lag, figures[B].time_lag_s) == (0, 0.0)


def test_rates_are_of_the_last_seconds_only() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    progress.update(*told(1000, (A, 1000, 1000, 1000, 1000)))
    for second in range(1, 21):
        clock.now = 1000 + second
        progress.update(*told(clock.now, (A, 1000, 1000, 1000, 1000)))
    assert progress.totals().records_per_s == 0
    assert progress.totals().records == 1000


def test_a_source_end_of_long_ago_is_unknown() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    progress.update(*told(1000, (A, 10, 25, 10, 1000), (B, 5, None, 0, 0)))
    assert (progress.totals().lag, progress.totals().unknown) == (15, 1)
    clock.now += MAX_FRESH_AGE_S + 1
    assert progress.partitions()[A].lag is None
    assert progress.partitions()[A].position == 10
    assert (progress.totals().lag, progress.totals().unknown) == (0, 2)


def test_a_task_that_does_not_know_the_end_yet_takes_nothing_away() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    tell(progress, clock, 1000, (A, 10, 25, 10, 1000))
    tell(progress, clock, 1001, (A, 15, None, 0, 0), epoch=2)
    assert (progress.partitions()[A].lag, progress.partitions()[A].source_age_s) == (10, 1)
    clock.now = 1000 + MAX_FRESH_AGE_S + 1
    tell(progress, clock, clock.now, (A, 15, None, 0, 0), epoch=2)
    assert (progress.partitions()[A].lag, progress.partitions()[A].source_age_s) == (None, MAX_FRESH_AGE_S + 1)


def test_what_is_left_to_seed_is_known_as_long_as_tasks_tell_it() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    progress.update(*told(1000, (A, 800_000, None, 0, 0), to_seed=2_200_000))
    progress.update(*told(1000, (B, 10, 25, 10, 1000), task=1))
    assert (progress.partitions()[A].to_seed, progress.partitions()[B].to_seed) == (2_200_000, 0)
    assert (progress.totals().seeding, progress.totals().to_seed) == (1, 2_200_000)
    progress.update(*told(1001, (A, 3_000_000, None, 0, 0)))
    assert (progress.totals().seeding, progress.totals().to_seed) == (0, 0)
    clock.now = 1001 + MAX_FRESH_AGE_S + 1
    assert progress.partitions()[A].to_seed is None


def test_a_partition_that_begins_anew_forgets_the_old_end() -> None:
    progress = ProgressTracker(Clock())
    progress.update(*told(1000, (A, 10, 25, 10, 1000)))
    progress.update(*told(1001, (A, 0, None, 0, 0), epoch=2))
    assert progress.partitions()[A].lag is None
    assert progress.partitions()[A].source_age_s is None


def test_time_lag_counts_from_the_moment_the_end_passed_the_position() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    tell(progress, clock, 1000, (A, 10, 25, 10, 1000))
    assert progress.partitions()[A].time_lag_s is None  # it had passed before anybody looked
    tell(progress, clock, 1001, (A, 25, 25, 25, 1000))
    tell(progress, clock, 1005, (A, 25, 25, 25, 1000))
    tell(progress, clock, 1006, (A, 25, 40, 25, 1000))
    tell(progress, clock, 1009, (A, 30, 60, 30, 1000))
    clock.now = 1010
    assert progress.partitions()[A].time_lag_s == 5.0
    assert progress.totals().worst_time_lag_s == 5.0
    tell(progress, clock, 1010, (A, 45, 60, 45, 1000))
    assert progress.partitions()[A].time_lag_s == 4.0  # 40 was passed; at 1006 the end still stood there
    tell(progress, clock, 1010.5, (A, 60, 60, 60, 1000))
    assert progress.partitions()[A].time_lag_s == 0.0


@pytest.mark.parametrize("hours", [0, 2, -2])
def test_a_lag_is_as_long_as_it_is_whatever_the_clocks_of_tasks_say(hours: int) -> None:
    clock, apart_s = Clock(), hours * 3_600
    progress = ProgressTracker(clock)
    tell(progress, clock, 1000, (A, 10, 10, 10, 1000), apart_s=apart_s)
    tell(progress, clock, 1005, (A, 10, 10, 10, 1000), apart_s=apart_s)
    tell(progress, clock, 1006, (A, 10, 40, 10, 1000), apart_s=apart_s)
    clock.now = 1010
    figures = progress.partitions()[A]
    assert (figures.lag, figures.time_lag_s, figures.source_age_s) == (30, 5.0, 4.0)
    tell(progress, clock, 1011, (A, 20, 60, 10, 1000), apart_s=-apart_s, epoch=2)  # on a machine with another clock
    figures = progress.partitions()[A]
    assert (figures.lag, figures.time_lag_s, figures.source_age_s) == (40, 6.0, 0.0)


def test_a_datagram_that_came_late_is_as_old_as_its_task_says() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    tell(progress, clock, 1000, (A, 10, 25, 10, 1000), apart_s=7_200)
    clock.now = 1004
    progress.update(*told(8201, (A, 15, 25, 15, 1500)))
    progress.update(*told(8200.5, (A, 12, 25, 12, 1200)))
    assert (progress.partitions()[A].position, progress.partitions()[A].source_age_s) == (15, 3.0)


def test_a_long_backlog_is_remembered_in_bounded_space() -> None:
    clock = Clock()
    progress = ProgressTracker(clock)
    tell(progress, clock, 1000, (A, 10, 10, 10, 1000))
    for second in range(1, 5000):
        tell(progress, clock, 1000 + second, (A, 10, 10 + second, 10, 1000))
    clock.now = 6000
    assert progress.partitions()[A].time_lag_s == 5000.0
    assert len(progress._tracked[A].ends) <= 33
    for copied in range(0, 4999, 100):
        tell(progress, clock, 6000, (A, 10 + copied, 5009, copied, 1000))
        time_lag_s = progress.partitions()[A].time_lag_s
        assert time_lag_s is not None
        assert 5000 - copied <= time_lag_s <= 5000 - copied + 5000 / 8
    tell(progress, clock, 6001, (A, 5009, 5009, 4999, 1000))
    assert progress.partitions()[A].time_lag_s == 0.0


def test_the_next_epoch_wins_over_last_words_of_the_one_before() -> None:
    progress = ProgressTracker(Clock())
    progress.update(*told(1000, (A, 10, 25, 10, 1000), epoch=1))
    progress.update(*told(1000.5, (A, 15, 25, 5, 500), epoch=2))
    progress.update(*told(1000.6, (A, 12, 25, 12, 1200), epoch=1))
    assert progress.partitions()[A].position == 15
    assert progress.totals().records == 17


def test_a_second_attempt_of_a_task_counts_from_zero_again() -> None:
    progress = ProgressTracker(Clock())
    progress.update(*told(1000, (A, 100, 500, 100, 1000)))
    progress.update(*told(1001, (A, 120, 500, 20, 200)))
    progress.update(*told(1002, (A, 130, 500, 30, 300)))
    assert progress.totals().records == 130
    assert progress.totals().bytes == 1300


def test_counts_of_old_epochs_are_forgotten_their_sum_is_not() -> None:
    progress = ProgressTracker(Clock())
    for epoch in range(100):
        progress.update(*told(1000 + epoch, (A, epoch, 500, 1, 10), epoch=epoch))
    assert progress.totals().records == 100
    assert len(progress._counts) == 2


def test_a_task_that_outlasts_its_epoch_for_a_look_is_counted_once() -> None:
    progress = ProgressTracker(Clock())
    for epoch in (1, 2, 3):
        progress.update(
            *told(1000 + epoch, (A, 100, 100, 100 if epoch == 1 else 0, 1000 if epoch == 1 else 0), epoch=epoch)
        )
    progress.update(*told(1004, (A, 100, 100, 100, 1000), epoch=1))
    assert (progress.totals().records, progress.totals().bytes) == (100, 1000)


def test_dropped_partitions_no_longer_count() -> None:
    progress = ProgressTracker(Clock())
    progress.update(*told(1000, (A, 10, 25, 10, 1000), (B, 5, 9, 0, 0)))
    progress.forget({A})
    assert progress.totals().partitions == 1
    assert progress.totals().lag == 4


@pytest.mark.parametrize(
    ("reports", "end", "is_in_doubt"),
    [
        ([(1, 20, 30), (2, 30, 40)], 40, False),
        ([(1, 20, 30), (2, 32, 40)], 30, True),
        ([(1, 20, 28), (2, 30, 40), (1, 20, 30)], 40, False),  # the last answers of an older task arrive late
        ([(1, 20, 30), (2, 32, 40), (3, 40, 50)], 30, True),
        ([(1, 20, 30), (2, 32, 40), (3, 30, 50)], 50, False),  # it has compared
        ([(1, 20, 30), (2, 25, 25), (2, 25, 35)], 35, False),  # the destination lost its end, which is copied again
        ([(1, 22, 30)], 20, True),
        ([(1, 20, 30), (1, -1, 40), (2, 35, 32), (9, 0, 2**63), (2, -9, -5), (2, 30, 40)], 40, False),
    ],
)
def test_what_no_task_says_that_it_copied_is_in_doubt(
    reports: list[tuple[int, int, int]], end: int, is_in_doubt: bool
) -> None:
    ends = ReportedEnds({A: 20})
    assert ends.take_comparison_start(A) == 20, "a process that begins does not know what was copied since"
    assert ends.take_comparison_start(B) is None
    for epoch, known_from, reported_end in reports:
        ends.add(A, epoch, known_from, reported_end)
    assert ends.take_comparison_start(A) == (end if is_in_doubt else None)
    assert ends.get_ends() == {A: end}


def test_a_late_datagram_of_a_topic_that_was_copied_before_counts_nowhere() -> None:
    copies, progress = CurrentCopies(), ProgressTracker(Clock())
    ends = ReportedEnds({A: 20, B: 20}, copies)
    handle = build_handlers(ClaimBoard(copies), progress, ends, copies)[DatagramKind.PROGRESS]

    def arrives(epoch: int, position: int) -> None:
        rows = [(p.topic, p.index, position, 50, 0, 0, 0, 0) for p in (A, B)]
        body = json.dumps({"task": 0, "t": 1000, "rows": rows}).encode()
        handle(Datagram(DatagramKind.PROGRESS, epoch, b"12345678", 1, body))

    arrives(3, 30)
    copies.begin({A}, 3)
    ends.forget({A})
    progress.forget({A})
    arrives(3, 50)
    assert ends.get_ends() == {B: 50}
    assert progress.partitions().keys() == {B}
    arrives(4, 7)
    assert ends.get_ends()[A] == 7
    assert progress.partitions()[A].lag == 43


def test_an_observation_keeps_what_tasks_have_reported() -> None:
    topics = (ObservedTopic(topic="a", ends=(10, 20, None, 30)),)
    observation = SourceObservation(mirror=MirrorName("m"), at_ms=1, topics=topics)
    assert not list(observation.get_reported_ends()), "a record of an older version says nothing"
    ends = {Partition("a", 0): 10, Partition("a", 1): 15, Partition("a", 2): 5, Partition("b", 0): 1}
    kept = observation.with_reported_ends(ends)
    assert kept.topics[0].reported == ((1, 15), (2, 5), (3, None)), "what is at the end costs nothing"
    assert dict(kept.get_reported_ends()) == {p: end for p, end in ends.items() if p.topic == "a"}

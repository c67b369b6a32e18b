"""Looks into logs beside a task's loop, of which one does not end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_core.copy import log_comparisons
from mirror_core.copy.background import BackgroundThreads
from mirror_core.copy.log_comparisons import MAX_COMPARISONS, MAX_SHORT_COMPARISONS, ComparisonCase, LogComparisons
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import FailDecision, ResumeDecision, WaitDecision, apply_decision
from mirror_core.copy.resume_finder import ResumeFinder
from mirror_core.decide.gaps_and_resume import NO_KNOWN_OFFSET
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from tests.support.log_comparisons import SEEN, replicator
from tests.support.resume_decisions import EAST, WEST
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

LONG, DIVERGED, GONE = 0, 1, 2
"""Partitions: one whose comparison is held; one that differs; one whose broker has gone."""


class Held:
    """Logs that agree; a comparison of the first partition's goes on until it is let go, or halted."""

    made: list[Held]

    def __init__(self) -> None:
        Held.made.append(self)
        self.halted = False
        self.closed = 0
        self.compared = list[int]()

    def find_first_divergence(
        self, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
    ) -> Offset | None:
        self.compared.append(partition.index)
        if partition.index == GONE:
            raise Unreachable("broker 3 has gone")
        while partition.index == LONG and not go_on.wait(0.01):
            if self.halted:
                raise Unreachable("halted")
        return Offset(5) if partition.index == DIVERGED else None

    def has_broker_time(self, partition: Partition, offset: int) -> bool:
        return False

    def halt(self) -> None:
        self.halted = True

    def close(self) -> None:
        self.closed += 1


go_on = threading.Event()
clock = SimpleNamespace(now=0.0)
"""By which looks are long, and begin no more. It stands still but for what a test says."""


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[LogComparisons]:
    go_on.clear()
    clock.now = time.monotonic()
    monkeypatch.setattr(log_comparisons, "time", SimpleNamespace(monotonic=lambda: clock.now))
    Held.made = []
    monkeypatch.setattr(log_comparisons, "RemoteLogInspector", lambda *_: Held())
    east, west = (cast("ClusterClient", SimpleNamespace(name=name)) for name in (EAST, WEST))
    with closing(BackgroundThreads()) as beside, closing(LogComparisons(east, west, 7, beside)) as made:
        yield made
        go_on.set()


def case(one: PartitionReplicator) -> ComparisonCase:
    return ComparisonCase(one, SEEN, NO_KNOWN_OFFSET, clock.now)


Told = dict[int, ResumeDecision | FailDecision | WaitDecision | RemoteFault | None]


def told(found: LogComparisons, count: int) -> Told:
    """What is told of so many partitions, by their numbers."""
    heard: Told = {}

    def all_of_them() -> bool:
        heard.update({one.partition.index: verdict for one, verdict in found.collect()})
        return len(heard) >= count

    wait_until(all_of_them, timeout_s=20, why=f"{count} verdicts were not told")
    return heard


def begin(found: LogComparisons, *ones: PartitionReplicator) -> None:
    assert list(found.start([case(one) for one in ones])) == [], "each needs a look"


def test_a_comparison_without_an_end_holds_up_nobody(found: LogComparisons) -> None:
    long, diverged, gone, well = (replicator(index) for index in range(4))
    begin(found, long, diverged, gone, well)
    heard = told(found, 3)
    assert isinstance(heard[3], ResumeDecision)
    assert isinstance(heard[GONE], Unreachable)
    verdict = heard[DIVERGED]
    assert isinstance(verdict, FailDecision)
    assert (verdict.kind, verdict.offset) == (FailureKind.DIVERGED, 5)
    assert [one.in_background for one in (long, diverged, gone, well)] == [True, False, False, False]
    assert not long.is_due(), "it is being looked at"
    begin(found, replicator(4))
    assert list(told(found, 1)) == [4], "others are looked at meanwhile"
    go_on.set()
    (last,) = told(found, 1).values()
    assert isinstance(last, ResumeDecision)
    apply_decision(long, last, EAST)
    assert long.state is CopyState.READY


def test_who_goes_does_not_wait_for_a_comparison_and_says_so(found: LogComparisons) -> None:
    long = replicator(LONG)
    begin(found, long)
    wait_until(lambda: found.active_count, timeout_s=20, why="the look does not begin")
    clock.now += 14.2
    found.close()
    assert long.lost_reason == (format_sentence("offset_compared_for", "west", "orders-0", 10, "east", 14))
    assert not long.in_background
    (logs,) = Held.made
    wait_until(lambda: logs.closed, timeout_s=20, why="nobody halts what reads for nobody")


def test_a_look_that_lasts_beyond_the_end_counts(found: LogComparisons) -> None:
    """Cut off, it would begin anew in each epoch, and the partition would stand still for ever."""
    long, never = replicator(LONG), replicator(LONG)
    east, west = found._source, found._destination
    with closing(BackgroundThreads()) as beside:
        aligner = ResumeFinder(east, west, 7, lambda *_: None, list, beside)
        assert list(aligner._comparisons.start([case(long)])) == []
        threading.Timer(0.2, go_on.set).start()
        assert aligner.finish(60.0, lambda: False) == 0
        go_on.clear()
        assert list(aligner._comparisons.start([case(never)])) == []
        wait_until(lambda: aligner._comparisons.active_count, timeout_s=20, why="the look does not begin")
        assert aligner.finish(0.0, lambda: False) == 1, "the driver hears how many were cut short"
        assert list(aligner._comparisons.start([case(never)])) == []
        wait_until(lambda: aligner._comparisons.active_count, timeout_s=20, why="the look does not begin")
        assert aligner.finish(60.0, lambda: True) == 0, "not by their end"
    assert (long.state, never.state) == (CopyState.READY, CopyState.LOST)
    assert "is being compared" in never.lost_reason


def test_what_a_look_tells_after_its_task_has_looked_anew_is_nothing(found: LogComparisons) -> None:
    long = replicator(LONG)
    begin(found, long)
    found.close()
    begin(found, long)
    old, new = Held.made
    wait_until(lambda: old.closed, timeout_s=20, why="the first look does not end")
    assert list(found.collect()) == []
    assert (long.in_background, new.halted) == (True, False)


def test_those_for_which_the_time_is_not_enough_are_due_again(
    found: LogComparisons, hold_all: Callable[[], None]
) -> None:
    hold_all()
    many = [replicator(index) for index in range(3 * MAX_SHORT_COMPARISONS)]
    for one in many:
        one.mark_lost("broker 2 has gone")
    begin(found, *many)
    wait_until(lambda: found.active_count == MAX_SHORT_COMPARISONS, timeout_s=20, why="looks do not begin")
    clock.now += 0.6
    assert list(found.collect()) == []
    assert not many[-1].in_background, "the last one waits on"
    assert sum(one.in_background for one in many) == MAX_SHORT_COMPARISONS
    more = replicator(99)
    begin(found, more)
    assert not more.in_background, "all threads are at work: it is seen anew first"
    for one in (many[-1], more):
        assert one.lost_reason == (format_sentence("log_comparison_waits", "west", one.partition, 8)), (
            "nobody compares it"
        )


def test_who_waits_for_a_turn_at_the_end_is_not_said_to_be_compared(
    found: LogComparisons, hold_all: Callable[[], None]
) -> None:
    hold_all()
    many = [replicator(index) for index in range(3 * MAX_SHORT_COMPARISONS)]
    begin(found, *many)
    wait_until(lambda: found.active_count == MAX_SHORT_COMPARISONS, timeout_s=20, why="looks do not begin")
    found.close()
    assert sum("is being compared" in one.lost_reason for one in many) == MAX_SHORT_COMPARISONS


def test_looks_that_take_long_keep_nobody_elses_from_beginning(found: LogComparisons, hurry: None) -> None:
    """They leave their turn, up to a number of them."""
    long = [replicator(LONG) for _ in range(MAX_COMPARISONS)]
    for one in long:
        wait_until(lambda one=one: begun(found, one), timeout_s=20, why="a long look does not begin")  # type: ignore[misc]
    last = replicator(99)
    assert not begun(found, last), "too many"
    go_on.set()
    told(found, 1)
    wait_until(lambda: begun(found, last), timeout_s=20, why="it does not begin")
    wait_until(lambda: list(found.collect()) == [] and not found.is_busy, timeout_s=20, why="looks do not end")
    assert len(found._idle_inspectors) == MAX_SHORT_COMPARISONS, "others' connections are not kept"


def test_who_needs_no_look_takes_nobodys_turn_away(found: LogComparisons, hold_all: Callable[[], None]) -> None:
    """Such as one whose replicas are behind: it is looked for again and again, and comes to no look."""
    hold_all()
    many = [replicator(index) for index in range(3 * MAX_SHORT_COMPARISONS)]
    begin(found, *many)
    begin(found)
    begin(found, replicator(99))
    assert sum(one.in_background for one in many) == len(many)


def test_a_leader_remembers_what_it_did_when_it_was_asked(found: LogComparisons) -> None:
    """During a long look it may forget us: then the first batch goes alone."""
    one = replicator(3)
    assert list(found.start([case(one)._replace(requested_at=time.monotonic() - 100)])) == []
    (verdict,) = told(found, 1).values()
    assert isinstance(verdict, ResumeDecision)
    apply_decision(one, verdict, EAST)
    one._note_enqueue()
    assert not one.progress.is_sequence_known


class Leaders:
    """Connections to them take their time."""

    def __init__(self) -> None:
        self.answer = False
        self.asked = list[int]()

    def connected(self, routed: list[PartitionReplicator]) -> list[PartitionReplicator]:
        self.asked.append(len(routed))
        for one in routed if not self.answer else ():
            one.mark_lost("cluster west, broker 1: no answer on a new connection yet")
        return routed if self.answer else []


@pytest.fixture
def leaders() -> Leaders:
    return Leaders()


@pytest.fixture
def aligner(found: LogComparisons, leaders: Leaders, monkeypatch: pytest.MonkeyPatch) -> Iterator[ResumeFinder]:
    monkeypatch.setattr("mirror_core.copy.resume_finder.time", SimpleNamespace(monotonic=lambda: clock.now))
    with closing(BackgroundThreads()) as beside:
        made = ResumeFinder(found._source, found._destination, 7, lambda *_: None, leaders.connected, beside)
        yield made
        made.close()


def looked_into(aligner: ResumeFinder, *ones: PartitionReplicator) -> None:
    assert list(aligner._comparisons.start([case(one) for one in ones])) == []
    wait_until(lambda: aligner._comparisons._results.qsize() == len(ones), timeout_s=20, why="looks do not end")


def test_verdicts_wait_for_connections_together_and_are_kept(aligner: ResumeFinder, leaders: Leaders) -> None:
    """A comparison of minutes is not begun anew for a connection that takes a moment."""
    many = [replicator(index) for index in range(10, 40)]
    looked_into(aligner, *many)
    aligner.apply_results()
    assert leaders.asked == [len(many)], "while nobody copies, each question waits for a second"
    assert not any(one.is_due() for one in many)
    aligner.apply_results()
    assert len(leaders.asked) == 1, "asked at each turn"
    leaders.answer, aligner._next_connect_at = True, 0.0
    aligner.apply_results()
    assert {one.state for one in many} == {CopyState.READY}
    assert not any(one.in_background for one in many)


def test_a_verdict_that_waits_for_too_long_is_dropped(aligner: ResumeFinder) -> None:
    one = replicator(9)
    looked_into(aligner, one)
    aligner.apply_results()
    assert one.in_background
    clock.now += 10.1
    aligner.apply_results()
    assert (one.state, one.in_background) == (CopyState.LOST, False), "its logs are looked into anew"


def test_a_verdict_waits_until_what_was_deleted_is_recorded(aligner: ResumeFinder, leaders: Leaders) -> None:
    one, recorded = replicator(9), list[bool]()
    one.trims = cast("Any", SimpleNamespace(can_pass=lambda *_: bool(recorded)))
    leaders.answer = True
    looked_into(aligner, one)
    aligner.apply_results()
    assert (one.state, one.in_background) == (CopyState.LOST, True)
    recorded.append(True)
    aligner._next_connect_at = 0.0
    aligner.apply_results()
    assert (one.state, one.in_background) == (CopyState.READY, False)


def test_a_verdict_that_waits_at_the_end_counts(aligner: ResumeFinder) -> None:
    one, other = replicator(9), replicator(10)
    looked_into(aligner, one)
    aligner.apply_results()
    looked_into(aligner, other)
    assert aligner.finish(0.0, lambda: False) == 0
    assert [(each.state, each.in_background) for each in (one, other)] == [(CopyState.READY, False)] * 2


def begun(found: LogComparisons, one: PartitionReplicator) -> bool:
    begin(found, one)
    return one.in_background


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of two seconds is a long one."""
    monkeypatch.setattr(log_comparisons, "_LONG_COMPARISON_S", 0.0)


@pytest.fixture
def hold_all(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def hold() -> None:
        def compare(
            held: Held, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
        ) -> None:
            while not go_on.wait(0.01) and not held.halted:
                pass

        monkeypatch.setattr(Held, "find_first_divergence", compare)

    return hold

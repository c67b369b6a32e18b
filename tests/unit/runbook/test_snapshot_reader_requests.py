"""A question to a cluster in a thread of its own: answers, refusals, silence, and defects of the question itself."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

import pytest

from mirror_core.decide.mirror_snapshot import UnseenCluster
from mirror_core.kafka import progress_timeout
from mirror_core.kafka.progress_timeout import local_processing, report_progress
from mirror_core.model.errors import MissingPermission
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook import snapshot_reader
from mirror_core.runbook.snapshot_reader import Query

T = TypeVar("T")


class Clock:
    """Goes on by what a question says, and only when all who wait for it have looked since: none of them is late."""

    def __init__(self) -> None:
        self.now, self.waiting, self.over = 1_000.0, 1, False
        self._looked, self._changed = set[int](), threading.Condition()

    def look(self) -> float:
        with self._changed:
            self._looked.add(threading.get_ident())
            self._changed.notify_all()
            return self.now

    def passes(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.over or len(self._looked) >= self.waiting, 60)
            self._looked.clear()
            self.now += seconds

    def end(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def while_heard(self, question: Callable[[], T], patience_s: float) -> T | UnseenCluster:
        began, asked = self.now, Query(question)
        asked._began = began
        return asked.await_while_progressing(began + patience_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(snapshot_reader, "time", SimpleNamespace(monotonic=made.look))
    monkeypatch.setattr(progress_timeout, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(snapshot_reader, "_POLL_S", 0.01)
    yield made
    made.end()


def _soon() -> float:
    return time.monotonic() + 10.0


def test_the_answer_is_handed_over() -> None:
    assert Query(lambda: 3).await_result(_soon()) == 3


def test_what_the_cluster_refuses_is_unseen() -> None:
    def refused() -> int:
        raise MissingPermission("cluster east: not allowed")

    assert Query(refused).await_result(_soon()) == UnseenCluster("cluster east: not allowed")


def test_a_silent_cluster_is_unseen() -> None:
    over, began = threading.Event(), time.monotonic()
    ask = Query(lambda: over.wait(60))
    ask._began = began
    found = ask.await_result(began)
    ask._began -= 60.0
    later = ask.await_result(began)
    over.set()
    assert found == UnseenCluster("no complete answer within 0 s")
    assert later == UnseenCluster("no complete answer within 60 s"), (
        "told of a limit that was not the one that was kept"
    )


def test_a_defect_is_told_at_once_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Not lost in the thread, not told as silence; and nobody is kept from leaving a dead cluster by it."""

    def broken() -> int:
        raise KeyError("password=hunter2")

    ask = Query(broken)
    found = ask.await_result(_soon())
    assert isinstance(found, UnseenCluster)
    assert re.fullmatch(r"a defect of Mirrorbook: KeyError in test_snapshot_reader_requests\.py line \d+", found.reason)
    assert ask.await_result(_soon()) == found
    assert found.reason in caplog.text
    assert "hunter2" not in caplog.text, "nobody has checked that text for secrets"


def test_a_side_that_goes_on_answering_is_waited_for(clock: Clock) -> None:
    """A big cluster has thousands of answers to give, and each of them in time."""
    one_s, answers, patience_s = 0.3, 6, 1.0
    late, over = threading.Event(), threading.Event()

    def much() -> int:
        for _ in range(answers):
            clock.passes(one_s)
            report_progress()
        return answers

    def goes_on() -> None:
        report_progress()
        late.set()
        over.wait(60)

    assert clock.while_heard(much, patience_s) == answers
    began, asked = clock.now, Query(goes_on)
    asked._began = began
    assert late.wait(60)
    clock.now += patience_s
    assert asked.await_result(began + patience_s) == UnseenCluster("no complete answer within 1 s"), "it is no shorter"
    over.set()


def test_time_to_make_sense_of_an_answer_is_no_silence(clock: Clock) -> None:
    def long() -> int:
        with local_processing():
            for _ in range(3):
                clock.passes(0.5)
            clock.passes(0.0)
        clock.passes(0.0)
        return 1

    assert clock.while_heard(long, 0.5) == 1


def test_who_looks_just_when_it_has_made_sense_takes_it_for_no_silence_either(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, reads = list[float](), progress_timeout.ProgressMonitor.change_local_work

    def looked_at(one: progress_timeout.ProgressMonitor, more: int) -> None:
        reads(one, more)
        seen.append(one.last_progress_at())

    monkeypatch.setattr(progress_timeout.ProgressMonitor, "change_local_work", looked_at)
    with progress_timeout.ProgressMonitor().activate(), local_processing():
        pass
    assert seen == sorted(seen)


@pytest.mark.parametrize("was_heard", [False, True])
def test_time_for_which_this_process_was_held_up_itself_is_no_silence(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, was_heard: bool
) -> None:
    """Nor of a side that is waited for behind another one: what both had answered meanwhile is still to be read."""
    looks, awake, both_awake = 0, threading.Event(), threading.Event()

    def look() -> float:
        nonlocal looks
        looks += 1
        clock.now += 60.0 if looks == 3 else 0.0
        if looks > 3:
            awake.set()
        if looks > 6:
            both_awake.set()
        return clock.now

    def question(event: threading.Event) -> bool:
        if was_heard:
            report_progress()
        return event.wait(60)

    monkeypatch.setattr(snapshot_reader, "time", SimpleNamespace(monotonic=look))
    asked = [Query(partial(question, event)) for event in (awake, both_awake)]
    for one in asked:
        one._began = clock.now
    deadline = clock.now + 4.0
    assert [one.await_while_progressing(deadline) for one in asked] == [True, True]


def test_who_waits_for_an_event_is_not_late_for_having_been_held_up(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, event, over = 0, threading.Event(), threading.Event()

    def look() -> float:
        nonlocal looks
        looks += 1
        clock.now += 60.0 if looks == 4 else 0.0
        if looks > 6:
            event.set()
        return clock.now

    ask = Query(lambda: over.wait(60))
    monkeypatch.setattr(snapshot_reader, "time", SimpleNamespace(monotonic=look))
    ask.await_event(event, 2.0)
    over.set()
    assert event.is_set()


def test_a_side_that_falls_silent_in_the_middle_is_unseen_and_so_is_one_that_never_ends(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()

    def stops() -> None:
        clock.passes(0.3)
        report_progress()
        while not silent.is_set():
            clock.passes(0.1)

    def drips() -> None:
        while not clock.over:
            clock.passes(0.1)
            report_progress()

    assert clock.while_heard(stops, 1.0) == UnseenCluster("no further answer for 1 s")
    silent.set()
    monkeypatch.setattr(snapshot_reader, "TIMEOUTS", replace(TIMEOUTS, plan_cluster_total_s=2.0))
    assert clock.while_heard(drips, 1.0) == UnseenCluster("no complete answer within 2 s")


def test_a_question_within_a_question_keeps_it_waiting(clock: Clock) -> None:
    clock.waiting = 2

    def inner() -> int:
        for _ in range(6):
            clock.passes(0.3)
            report_progress()
        return 1

    def outer() -> int | UnseenCluster:
        return clock.while_heard(inner, 0.9)

    assert clock.while_heard(outer, 1.0) == 1

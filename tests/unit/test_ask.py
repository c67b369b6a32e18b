"""A question to a cluster in a thread of its own: answers, refusals, silence, and defects of the question itself."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

import pytest

from mirror_core.decide.view import Unseen
from mirror_core.kafka.hearing import heard, reading
from mirror_core.model.errors import MissingPermission
from mirror_core.model.limits import LIMITS
from mirror_core.runbook import observe
from mirror_core.runbook.observe import Ask


def _soon() -> float:
    return time.monotonic() + 10.0


def test_the_answer_is_handed_over() -> None:
    assert Ask(lambda: 3).answer(_soon()) == 3


def test_what_the_cluster_refuses_is_unseen() -> None:
    def refused() -> int:
        raise MissingPermission("cluster east: not allowed")

    assert Ask(refused).answer(_soon()) == Unseen("cluster east: not allowed")


def test_a_silent_cluster_is_unseen() -> None:
    over = threading.Event()
    ask = Ask(lambda: over.wait(60))
    found = ask.answer(time.monotonic())
    ask._began -= 60.0
    later = ask.answer(time.monotonic())
    over.set()
    assert found == Unseen("no complete answer within 0 s")
    assert later == Unseen("no complete answer within 60 s"), "told of a limit that was not the one that was kept"


def test_a_defect_is_told_at_once_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Not lost in the thread, not told as silence; and nobody is kept from leaving a dead cluster by it."""

    def broken() -> int:
        raise KeyError("password=hunter2")

    ask = Ask(broken)
    found = ask.answer(_soon())
    assert isinstance(found, Unseen)
    assert re.fullmatch(r"a defect of Mirrorbook: KeyError in test_ask\.py line \d+", found.reason)
    assert ask.answer(_soon()) == found
    assert found.reason in caplog.text
    assert "hunter2" not in caplog.text, "nobody has checked that text for secrets"


def test_a_side_that_goes_on_answering_is_waited_for() -> None:
    """A big cluster has thousands of answers to give, and each of them in time."""
    one_s, answers, patience_s = 0.3, 6, 1.0

    def much() -> int:
        for _ in range(answers):
            threading.Event().wait(one_s)
            heard()
        return answers

    asked = Ask(much)
    assert asked.while_heard(time.monotonic() + patience_s) == answers
    asked = Ask(much)
    assert asked.answer(time.monotonic() + patience_s) == Unseen("no complete answer within 1 s"), "it is no shorter"


def test_time_to_make_sense_of_an_answer_is_no_silence() -> None:
    def long() -> int:
        with reading():
            threading.Event().wait(1.5)
        return 1

    assert Ask(long).while_heard(time.monotonic() + 0.5) == 1


def test_a_side_that_falls_silent_in_the_middle_is_unseen_and_so_is_one_that_never_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    def stops() -> None:
        over.wait(0.3)
        heard()
        over.wait(60)

    def drips() -> None:
        while not over.wait(0.1):
            heard()

    assert Ask(stops).while_heard(time.monotonic() + 1.0) == Unseen("no further answer for 1 s")
    monkeypatch.setattr(observe, "LIMITS", replace(LIMITS, answering_side_s=2.0))
    assert Ask(drips).while_heard(time.monotonic() + 1.0) == Unseen("no complete answer within 2 s")
    over.set()


def test_a_question_within_a_question_keeps_it_waiting() -> None:
    def inner() -> int:
        for _ in range(6):
            threading.Event().wait(0.3)
            heard()
        return 1

    def outer() -> int | Unseen:
        return Ask(inner).while_heard(time.monotonic() + 0.9)

    assert Ask(outer).while_heard(time.monotonic() + 1.0) == 1

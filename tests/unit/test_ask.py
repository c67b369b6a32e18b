"""A question to a cluster in a thread of its own: answers, refusals, silence, and defects of the question itself."""

from __future__ import annotations

import re
import threading
import time

import pytest

from mirror_core.decide.view import Unseen
from mirror_core.model.errors import MissingPermission
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

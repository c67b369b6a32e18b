"""A question to a cluster in a thread of its own: answers, refusals, silence, and defects of the question itself."""

from __future__ import annotations

import threading
import time

import pytest

from mirror_core.decide.view import Unseen
from mirror_core.model.errors import MissingPermission
from mirror_core.model.limits import LIMITS
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
    found = Ask(lambda: over.wait(60)).answer(time.monotonic())
    over.set()
    assert found == Unseen(f"no complete answer within {LIMITS.planned_side_s:.0f} s")


def test_a_defect_is_told_at_once_as_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Not lost in the thread, not told as silence; and nobody is kept from leaving a dead cluster by it."""

    def broken() -> int:
        raise KeyError("orders")

    ask = Ask(broken)
    for _ in range(2):
        assert ask.answer(_soon()) == Unseen("a defect of Mirrorbook: KeyError: 'orders'")
    assert "Traceback" in caplog.text

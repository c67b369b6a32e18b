"""Errors of threads that tests start are those tests' own."""

from __future__ import annotations

import threading

import pytest

from tests.support.checked_threads import Work, beside
from tests.support.replicate_process import Application


class Broken(Exception):
    pass


def _break() -> None:
    raise Broken("in the thread")


def test_an_error_is_raised_where_the_block_ends() -> None:
    with pytest.raises(Broken, match="in the thread"), beside(_break, lambda: None):
        pass


def test_a_block_that_fails_keeps_its_own_error_and_says_what_happened_beside_it() -> None:
    with pytest.raises(AssertionError, match="lost") as failed, beside(_break, lambda: None, name="application"):
        raise AssertionError("3 records are lost")
    [note] = failed.value.__notes__
    assert note.startswith("beside it, in thread application:\n")
    assert "Broken: in the thread" in note


def test_what_was_expected_of_a_thread_is_not_raised_again() -> None:
    with beside(_break, lambda: None) as work, pytest.raises(Broken):
        work.join()


def test_a_thread_is_told_to_end_and_its_result_is_at_hand() -> None:
    stop = threading.Event()
    with beside(lambda: stop.wait(60), stop.set) as work:
        assert work.alive
    assert not work.alive
    assert work.result() is True


def test_a_thread_that_does_not_end_fails_and_is_named() -> None:
    over = threading.Event()
    with (
        pytest.raises(AssertionError, match=r"thread sleeper has not ended within 0.05 s"),
        beside(lambda: over.wait(60), lambda: None, name="sleeper", timeout_s=0.05) as work,
    ):
        pass
    over.set()
    work.join()


def test_an_error_is_not_lost_when_nobody_has_waited_yet() -> None:
    work = Work(_break).start()
    with pytest.raises(Broken):
        work.result()


def test_an_application_that_breaks_fails_the_test_that_started_it() -> None:
    class Failing(Application):
        def _write(self) -> None:
            raise Broken("west does not acknowledge")

    with pytest.raises(Broken, match="west does not acknowledge"), Failing():
        pass

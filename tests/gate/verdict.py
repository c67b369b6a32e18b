"""What a run of tests comes to: green, red, or once more for the few that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.gate.events import Failure

MOST_AGAIN: Final = 3
"""More failed tests than this are no bad luck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one stage came to."""

    counts: dict[str, int]
    """Tests by outcome."""
    passed: frozenset[str]
    failures: tuple[Failure, ...]
    broken: tuple[str, ...]
    """What went wrong beside tests: a process that died or never ended, a test that was collected and not run."""
    seconds: dict[str, float]
    """Of each file of tests."""
    took_s: float


def failed_tests(failures: Sequence[Failure]) -> tuple[str, ...]:
    """Each once, in the order in which they failed."""
    return tuple(dict.fromkeys(failure.test for failure in failures))


def runs_again(run: Run, *, allowed: bool) -> tuple[str, ...]:
    """What runs once more, alone: tests, or the file of one that failed behind its end, since that may be about what
    all tests of the file have left. Nothing when the run is green, or red whatever a second run finds."""
    barred = run.broken or not allowed or not all(failure.again for failure in run.failures)
    if barred or len(failed_tests(run.failures)) > MOST_AGAIN:
        return ()
    files = {file_of(failure.test) for failure in run.failures if failure.phase == "teardown"}
    tests = (test for test in failed_tests(run.failures) if file_of(test) not in files)
    return (*sorted(files), *tests)


def is_green(run: Run) -> bool:
    return bool(run.counts.get("passed")) and not run.failures and not run.broken


def flaky_after(first: Run, second: Run) -> tuple[Failure, ...]:
    """The failures that count as bad luck: the second run is green, and each test that failed has passed in it."""
    failed = set(failed_tests(first.failures))
    return first.failures if is_green(second) and failed <= second.passed else ()


def file_of(test: str) -> str:
    """The file of a test, by pytest's name of it."""
    return test.partition("::")[0]

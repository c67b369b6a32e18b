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
    """The tests that run once more, alone; none when the run is green, or red whatever a second run finds."""
    tests = failed_tests(run.failures)
    barred = run.broken or not allowed or not all(failure.again for failure in run.failures)
    return () if barred or len(tests) > MOST_AGAIN else tests


def is_green(run: Run) -> bool:
    return bool(run.counts.get("passed")) and not run.failures and not run.broken


def flaky_after(first: Run, second: Run, tests: Sequence[str]) -> tuple[Failure, ...]:
    """The failures that count as bad luck: the second run ran exactly these tests, and all of them passed."""
    whole = second.counts == {"passed": len(tests)}
    return first.failures if whole and is_green(second) else ()

"""The last lines that a run prints: short enough to be read whole, and enough to understand each failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.gate.events import Failure

LINES: Final = 190
LEAST_LINES: Final = 12


def explain(failures: Sequence[Failure], broken: Sequence[str] = (), lines: int = LINES) -> list[str]:
    """Of each failure the assertion, what was printed, and the brokers' logs; at most so many lines in all."""
    told = [f"BROKEN: {line}" for one in broken for line in one.splitlines()[-40:]]
    each = max(LEAST_LINES, (lines - len(told)) // max(1, len(failures)))
    for number, failure in enumerate(failures):
        if len(told) + LEAST_LINES > lines:
            told.append(f"and {len(failures) - number} more: " + " ".join(f.test for f in failures[number:])[:1000])
            break
        told += _one(failure, each)
    return told


def _one(failure: Failure, lines: int) -> list[str]:
    head = [f"FAILED: {failure.test} ({failure.load})", f"  logs: {failure.logs}"]
    left = lines - len(head) - 2
    error = failure.error.splitlines()
    said, brokers = failure.said.splitlines(), failure.brokers.splitlines()
    for_error = min(len(error), max(left // 2, left - len(said) - len(brokers)))
    for_said = min(len(said), max((left - for_error) // 2, left - for_error - len(brokers)))
    for_brokers = min(len(brokers), left - for_error - for_said)
    return [
        *head,
        *(f"  {line}" for line in error[:for_error]),
        *_titled("printed last", said, for_said),
        *_titled("logs, warnings and worse", brokers, for_brokers),
    ]


def _titled(title: str, lines: Sequence[str], count: int) -> list[str]:
    return [f"  -- {title}:", *(f"  {line[:300]}" for line in lines[-count:])] if count > 0 else []


def flaky_lines(failures: Sequence[Failure]) -> list[str]:
    """Said at the very end of a green run, so that nobody misses them."""
    return [
        f"FLAKY: {failure.test} passed in a second run. First failure ({failure.load}): "
        + (failure.error.splitlines() or ["no text"])[-1].strip()[:300]
        for failure in failures
    ]

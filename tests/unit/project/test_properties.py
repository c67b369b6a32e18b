"""Property tests try the same examples each time; where asked to explore, new ones. A failure can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import tests.conftest
from hypothesis import given, settings
from hypothesis import strategies as st

tried = []

@settings(database=None)
@given(st.integers(0, 2**63))
def probe(number):
    tried.append(number)
    assert number < 2**40, number

for _ in range(2):
    try:
        probe()
    except AssertionError as error:
        print("@reproduce_failure" in "".join(error.__notes__), flush=True)
    tried.append(None)
first = tried[: tried.index(None)]
print(first == tried[len(first) + 1 : -1], settings.default.deadline)
"""


@pytest.mark.parametrize(("explore", "repeats"), [("", "True"), ("1", "False")])
def test_runs_repeat_each_other_unless_they_explore_and_failures_can_be_repeated(explore: str, repeats: str) -> None:
    """In a process of its own, since Hypothesis looks for CI when it is imported."""
    ended = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "CI": "true", "MIRRORBOOK_EXPLORE": explore},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.split() == ["True", "True", repeats, "None"], ended.stderr

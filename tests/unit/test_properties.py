"""Property tests look for new examples everywhere, and say how to repeat a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_under_ci_no_run_repeats_another_and_failures_can_be_repeated() -> None:
    """In a process of its own, since Hypothesis looks for CI when it is imported."""
    ended = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "CI": "true"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.split() == ["True", "True", "False", "None"], ended.stderr

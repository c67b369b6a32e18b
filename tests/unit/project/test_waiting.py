"""What a wait that was in vain says, and how long it is."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from mirror_core.model.timing import SCALE_FACTOR
from tests.support import waiting
from tests.support.waiting import LONGEST_S, patience, wait_until


def test_a_wait_in_vain_says_for_what_how_long_and_how_busy_the_machine_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=41.50 avg60=2.00 avg300=1.00 total=9\nfull avg10=0.00 avg60=0.00\n")
    monkeypatch.setattr(waiting, "PRESSURE", pressure)
    with pytest.raises(AssertionError) as failed:
        wait_until(lambda: 0, timeout_s=0.1, why="it is there")
    said = str(failed.value)
    assert re.match(r"not within \d+\.\d s: ", said)
    assert "it is there (last: 0; load average " in said
    assert said.endswith(" CPU(s), CPU pressure some avg10 41.50 %)")
    monkeypatch.setattr(waiting, "PRESSURE", tmp_path / "none")
    assert "pressure" not in waiting.how_busy()


def test_a_limit_is_scaled_once() -> None:
    assert patience(10.0) == patience(patience(10.0)) == 10.0 * SCALE_FACTOR
    began = time.monotonic()
    with pytest.raises(AssertionError):
        wait_until(lambda: None, timeout_s=patience(0.1), why="it does not come")
    assert time.monotonic() - began >= 0.1 * SCALE_FACTOR


@pytest.mark.parametrize("seconds", [LONGEST_S, 2 * LONGEST_S])
def test_what_would_outlive_a_test_is_left_as_it_is(seconds: float) -> None:
    assert patience(seconds) == seconds
    assert patience(LONGEST_S - 1) <= LONGEST_S

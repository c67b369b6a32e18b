"""A wall clock that is wrong, shared by tests."""

from __future__ import annotations

import time
from typing import Final

import pytest

HOUR_S: Final = 3_600


class ShiftedClock:
    """This process's wall clock, set wrong; the brokers' and the monotonic one go on as they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hours = 0.0
        right, right_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: right() + self.hours * HOUR_S)
        monkeypatch.setattr(time, "time_ns", lambda: right_ns() + int(self.hours * HOUR_S * 1e9))

"""The wall clock, as it stands in records, leases and plans. Intervals are measured by `time.monotonic` instead, or by
both where a process that slept must not take for new what is old."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

FRESH_S: Final = 10.0
"""Whoever was last heard of longer ago counts as gone, and what was last seen longer ago as not known now."""

CONDUCTED_S: Final = 30.0
"""A run's conductor beats every 10 s. Whoever was last heard of longer ago may be taken the run from."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SteadyClock:
    """Seconds since the epoch by the wall clock of when it was made, and by the monotonic one from then on: the wall
    clock may be set meanwhile. For minutes, not for days: the two drift apart."""

    def __init__(self) -> None:
        self._ahead_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was seen, by both clocks: the monotonic one may stand still while a machine is suspended, and the
    wall clock may be set."""

    _ticks_s: float = field(default_factory=lambda: time.monotonic())
    _wall_ms: int = field(default_factory=lambda: now_ms())

    @property
    def age_s(self) -> float:
        """Seconds since then, by the clock that has seen more of them pass."""
        return max(time.monotonic() - self._ticks_s, (now_ms() - self._wall_ms) / 1000)

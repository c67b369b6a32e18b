"""Wall clock and liveness limits. Measure intervals with `time.monotonic`, or both clocks where a
process may sleep."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

MAX_FRESH_AGE_S: Final = 10.0
"""Older heartbeats mean a lost owner; older observations are unknown now."""

CONDUCTOR_TIMEOUT_S: Final = 30.0
"""A conductor beats every 10 s; after this its run may be taken over."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class SteadyClock:
    """Wall clock at creation, advanced by the monotonic clock. For minutes only: they drift apart."""

    def __init__(self) -> None:
        self._wall_minus_monotonic_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() + self._wall_minus_monotonic_s


@dataclass(frozen=True, slots=True)
class Moment:
    _ticks_s: float = field(default_factory=lambda: time.monotonic())
    _wall_ms: int = field(default_factory=lambda: now_ms())

    @property
    def age_s(self) -> float:
        """By the clock that advanced more."""
        return max(time.monotonic() - self._ticks_s, (now_ms() - self._wall_ms) / 1000)

"""The wall clock, as it stands in records, leases and plans. Intervals are measured by `time.monotonic` instead."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000

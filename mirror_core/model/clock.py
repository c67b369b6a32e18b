"""The wall clock, as it stands in records, leases and plans. Intervals are measured by `time.monotonic` instead."""

from __future__ import annotations

import time
from typing import Final

FRESH_S: Final = 10.0
"""Whoever was last heard of longer ago counts as gone, and what was last seen longer ago as not known now."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000

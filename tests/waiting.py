"""Wait for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.05


def wait_until(cond: Callable[[], T], *, timeout_s: float, why: str) -> T:
    """The first true value of `cond`. Fails with `why` (what was awaited, and for what) after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = cond()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {why} (last: {value!r})")
        time.sleep(PAUSE_S)

"""Wait for a condition instead of for a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from mirror_core.model.timing import SCALE_FACTOR

T = TypeVar("T")
PAUSE_S = 0.05
LONGEST_S: Final = 600.0
"""What is waited for longer than this, or as long, is not scaled: pytest ends a test first, and says less."""
PRESSURE: Final = Path("/proc/pressure/cpu")


class Scaled(float):
    """Seconds that `patience` has scaled: it does not do so twice."""


def patience(seconds: float) -> float:
    """So many seconds, and as many times as many as the machine needs (`MIRRORBOOK_PATIENCE`).

    For limits that only a hang reaches. Not for a time that a test asserts.
    """
    return seconds if isinstance(seconds, Scaled) else Scaled(max(seconds, min(seconds * SCALE_FACTOR, LONGEST_S)))


def wait_until(cond: Callable[[], T], *, timeout_s: float, why: str) -> T:
    """The first true value of `cond`. Fails after `timeout_s`, scaled, with `why` (what was awaited, and for what)."""
    began = time.monotonic()
    deadline = began + patience(timeout_s)
    while True:
        value = cond()
        if value:
            return value
        if time.monotonic() > deadline:
            waited_s = time.monotonic() - began
            raise AssertionError(f"not within {waited_s:.1f} s: {why} (last: {value!r}; {how_busy()})")
        time.sleep(PAUSE_S)


def how_busy() -> str:
    """Of the machine, now: tells a run that got no processor from one that hangs."""
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPU(s)"
    if not PRESSURE.exists():
        return load
    some = PRESSURE.read_text(encoding="ascii").split()
    avg10 = next(word.removeprefix("avg10=") for word in some if word.startswith("avg10="))
    return f"{load}, CPU pressure some avg10 {avg10} %"

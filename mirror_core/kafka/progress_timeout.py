"""Extends a long request's deadline while responses keep arriving."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_CURRENT_MONITOR: Final[ContextVar[ProgressMonitor | None]] = ContextVar("hearing", default=None)


class ProgressMonitor:
    """Also counts for the enclosing monitor."""

    def __init__(self) -> None:
        self._outer = _CURRENT_MONITOR.get()
        self._last_at = -math.inf
        self._local_work = 0
        self._lock = threading.Lock()

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Also for threads in a copy of this context."""
        token = _CURRENT_MONITOR.set(self)
        try:
            yield
        finally:
            _CURRENT_MONITOR.reset(token)

    def last_progress_at(self) -> float:
        """Monotonic; now, during local processing."""
        return time.monotonic() if self._local_work else self._last_at

    def note_progress(self) -> None:
        self._last_at = time.monotonic()
        if self._outer is not None:
            self._outer.note_progress()

    def change_local_work(self, delta: int) -> None:
        with self._lock:
            self._local_work += delta
        if self._outer is not None:
            self._outer.change_local_work(delta)


def report_progress() -> None:
    if (monitor := _CURRENT_MONITOR.get()) is not None:
        monitor.note_progress()


@contextmanager
def local_processing() -> Iterator[None]:
    """Decoding time is not the broker's silence."""
    monitor = _CURRENT_MONITOR.get()
    if monitor is None:
        yield
        return
    monitor.change_local_work(+1)
    try:
        yield
    finally:
        monitor.note_progress()  # first, so that no reader counts that time as silence
        monitor.change_local_work(-1)

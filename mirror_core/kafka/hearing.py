"""Extends a long request's deadline while responses keep arriving.

Connections report reads to the context's `ProgressMonitor`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_CURRENT: Final[ContextVar[Hearing | None]] = ContextVar("hearing", default=None)


class Hearing:
    """Also counts for the enclosing monitor."""

    def __init__(self) -> None:
        self._within = _CURRENT.get()
        self._last = -math.inf
        self._reading = 0
        self._lock = threading.Lock()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Also for threads in a copy of this context."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def last(self) -> float:
        """Monotonic; now, during local processing."""
        return time.monotonic() if self._reading else self._last

    def heard(self) -> None:
        self._last = time.monotonic()
        if self._within is not None:
            self._within.heard()

    def reads(self, more: int) -> None:
        with self._lock:
            self._reading += more
        if self._within is not None:
            self._within.reads(more)


def heard() -> None:
    """Called by connections when bytes arrive."""
    if (hearing := _CURRENT.get()) is not None:
        hearing.heard()


@contextmanager
def reading() -> Iterator[None]:
    """Decoding time is not the broker's silence."""
    hearing = _CURRENT.get()
    if hearing is None:
        yield
        return
    hearing.reads(+1)
    try:
        yield
    finally:
        hearing.heard()  # first, so that no reader counts that time as silence
        hearing.reads(-1)

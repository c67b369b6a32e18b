"""Whether a question that takes long is being answered: a big cluster has much to say, a dead one says nothing.

Whoever asks in a thread of its own gives it a `Hearing`; connections that are read in it tell it of each answer.
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
    """Of one question. What is heard by a question within it is heard by this one, too."""

    def __init__(self) -> None:
        self._within = _CURRENT.get()
        self._last = -math.inf
        self._reading = 0
        self._lock = threading.Lock()

    @contextmanager
    def here(self) -> Iterator[None]:
        """What connections hear in this context, and in threads that go on with a copy of it."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def last(self) -> float:
        """When something was heard last (monotonic); now, while nothing is awaited."""
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
    """Something has come from a broker."""
    if (hearing := _CURRENT.get()) is not None:
        hearing.heard()


@contextmanager
def reading() -> Iterator[None]:
    """What takes this process's own time, such as to make sense of a long answer, is no silence of the broker's."""
    hearing = _CURRENT.get()
    if hearing is None:
        yield
        return
    hearing.reads(+1)
    try:
        yield
    finally:
        hearing.heard()  # before it awaits again: whoever looks in between would take all that time for silence
        hearing.reads(-1)

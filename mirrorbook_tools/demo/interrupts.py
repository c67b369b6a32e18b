"""Ctrl-C, and what else asks a process to end: raised wherever we are, but not inside what must be done whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """As a context, of the main thread: these signals raise KeyboardInterrupt until it is left."""

    def __init__(self) -> None:
        self._held = 0
        self._waiting = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._arrived) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What arrives inside is raised at the end: a process that was started is noted by then."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._waiting and not self._held:
            self._waiting = False
            raise KeyboardInterrupt

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        if self._held:
            self._waiting = True
        else:
            raise KeyboardInterrupt

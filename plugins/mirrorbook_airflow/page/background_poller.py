"""Polls in a background thread while results are requested."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Generic, TypeVar

T = TypeVar("T")
IDLE_TIMEOUT_S: Final = 15.0
"""Polling ends when no request came for so long."""


class BackgroundPoller(Generic[T]):
    """Requests return the latest result at once."""

    def __init__(
        self,
        poll: Callable[[], T],
        interval_s: float,
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`context`: entered while polling."""
        self._poll = poll
        self._interval_s = interval_s
        self._idle_timeout_s = idle_timeout_s
        self._context = context
        self._lock = threading.Lock()
        self._requested_s = 0.0
        self._is_running = False
        self._latest: T | None = None

    def get_latest(self) -> T | None:
        """None before the first poll has ended."""
        with self._lock:
            self._requested_s = time.monotonic()
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="mirrorbook-page", daemon=True).start()
            return self._latest

    @property
    def is_wanted(self) -> bool:
        """Requested within the idle timeout: a long poll may stop otherwise."""
        return time.monotonic() - self._requested_s <= self._idle_timeout_s

    def _run(self) -> None:
        try:
            with self._context():
                wanted = True
                while wanted:
                    begun_s = time.monotonic()
                    result = self._poll()
                    with self._lock:
                        self._latest = result
                    time.sleep(max(0.0, begun_s + self._interval_s - time.monotonic()))
                    wanted = self._must_go_on()
        except BaseException:
            with self._lock:
                self._is_running = False  # whoever asks next begins anew
            raise

    def _must_go_on(self) -> bool:
        with self._lock:
            self._is_running = self.is_wanted
            return self._is_running

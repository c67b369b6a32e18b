"""Something that is looked up again and again in a thread of its own, as long as somebody asks for what it found."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Generic, TypeVar

T = TypeVar("T")
IDLE_S: Final = 15.0
"""Nobody has asked for so long: the looks end."""


class OnDemand(Generic[T]):
    """One look at a time for all who ask, and nobody waits for it."""

    def __init__(
        self,
        look: Callable[[], T],
        every_s: float,
        *,
        idle_s: float = IDLE_S,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`around`: entered as long as looks go on."""
        self._look = look
        self._every_s = every_s
        self._idle_s = idle_s
        self._around = around
        self._lock = threading.Lock()
        self._wanted_s = 0.0
        self._at_work = False
        self._latest: T | None = None

    def latest(self) -> T | None:
        """What the last look found, however old; None before the first has ended. Returns at once."""
        with self._lock:
            self._wanted_s = time.monotonic()
            if not self._at_work:
                self._at_work = True
                threading.Thread(target=self._run, name="mirrorbook-page", daemon=True).start()
            return self._latest

    @property
    def wanted(self) -> bool:
        """Whether somebody has asked lately: a look that takes long need not go on otherwise."""
        return time.monotonic() - self._wanted_s <= self._idle_s

    def _run(self) -> None:
        try:
            with self._around():
                wanted = True
                while wanted:
                    begun_s = time.monotonic()
                    found = self._look()
                    with self._lock:
                        self._latest = found
                    time.sleep(max(0.0, begun_s + self._every_s - time.monotonic()))
                    wanted = self._is_wanted()
        except BaseException:
            with self._lock:
                self._at_work = False  # whoever asks next begins anew
            raise

    def _is_wanted(self) -> bool:
        """Whether to look again; after a no the next who asks begins anew."""
        with self._lock:
            self._at_work = self.wanted
            return self._at_work

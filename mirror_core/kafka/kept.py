"""Connections that nobody uses just now, kept while a run is at work, for its next look at the same broker.

To open one and sign in takes five round trips. A run looks dozens of times while applications stand still: 200 ms away
that was more than half of the standstill. Outside of `keeping()` nothing is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from mirror_core.kafka.connection import Connection


class Kept:
    """By whose they are: the broker's address, and everything that was used to sign in there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a collector that runs under it may end a client that gives its own back
        self._at_work = 0
        self._idle: dict[Hashable, list[Connection]] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Until the last one leaves; then all are closed."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1
                over = [] if self._at_work else [one for idle in self._idle.values() for one in idle]
                if over:
                    self._idle.clear()
            for one in over:
                one.close()

    def put(self, key: Hashable, connection: Connection) -> None:
        """Whoever had it needs it no more. Closed where none are kept, or when an answer is still to come."""
        with self._lock:
            if self._at_work and not connection.awaits:
                self._idle.setdefault(key, []).append(connection)
                return
        connection.close()

    def take(self, key: Hashable) -> Connection | None:
        """One that the broker has not closed, as far as is known here; nobody else gets it."""
        while True:
            with self._lock:
                idle = self._idle.get(key)
                connection = idle.pop() if idle else None
            if connection is None or not connection.has_something:
                return connection
            connection.close()

    def forget(self, key: Hashable) -> None:
        """One of them was found dead: whoever took another one would find that, too, after all of a time limit."""
        with self._lock:
            idle = self._idle.pop(key, [])
        for one in idle:
            one.close()


KEPT: Final = Kept()
"""This process's."""

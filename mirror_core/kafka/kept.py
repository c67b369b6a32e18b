"""Pool of idle connections, on while a run is active.

Connecting and signing in takes five round trips; at 200 ms that was more than half of a run's downtime.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final

from mirror_core.kafka.connection import Connection


class ConnectionPool:
    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: garbage collection may close a client here
        self._users = 0
        self._idle: dict[Hashable, list[Connection]] = {}

    @contextmanager
    def keep_connections(self) -> Iterator[None]:
        """The last user closes all."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                to_close = [] if self._users else [connection for idle in self._idle.values() for connection in idle]
                if to_close:
                    self._idle.clear()
            for connection in to_close:
                connection.close()

    def release(self, key: Hashable, connection: Connection) -> None:
        """Closes it when the pool is off or a response is outstanding."""
        with self._lock:
            if self._users and not connection.response_pending:
                self._idle.setdefault(key, []).append(connection)
                return
        connection.close()

    def acquire(self, key: Hashable) -> Connection | None:
        """Skips those that the broker has closed."""
        while True:
            with self._lock:
                idle = self._idle.get(key)
                connection = idle.pop() if idle else None
            if connection is None or not connection.is_readable:
                return connection
            connection.close()

    def discard(self, key: Hashable) -> None:
        """One was dead: each other one could cost a time limit."""
        with self._lock:
            idle = self._idle.pop(key, [])
        for connection in idle:
            connection.close()


CONNECTION_POOL: Final = ConnectionPool()

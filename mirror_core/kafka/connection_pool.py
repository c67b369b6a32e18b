"""Idle connections, kept while a run is active; parallel connects.

Connecting takes five round trips: at 200 ms more than half of a run's downtime.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import Final

from mirror_core.kafka.connection import Connection, wait_until_responsive
from mirror_core.model.errors import (
    AuthenticationFailed,
    BadRequest,
    ConnectionRefused,
    ConnectionRejected,
    MirrorError,
    Unreachable,
)
from mirror_core.model.text import format_address


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
        """After one was dead: each other could cost a time limit."""
        with self._lock:
            idle = self._idle.pop(key, [])
        for connection in idle:
            connection.close()


CONNECTION_POOL: Final = ConnectionPool()
Address = tuple[str, int]
_INITIAL_CONNECTIONS: Final = 16
_DOUBLE_AFTER_S: Final = 0.5
"""Then twice as many start. When a cluster comes back, all tasks connect at once, perhaps to hundreds of brokers."""
_GRACE_S: Final = 0.5


class ParallelConnect:
    """Those still connecting at `close` are closed on completion."""

    def __init__(self, cluster: str, open_one: Callable[[Address], Connection], addresses: Sequence[Address]) -> None:
        self.problems: list[MirrorError] = []
        """In the end also timeouts."""
        self._cluster = cluster
        self._open_one = open_one
        self._not_started = list(addresses)
        self._connecting: dict[Future[Connection], Address] = {}
        self._awaiting_response: dict[Address, Connection] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(len(addresses), thread_name_prefix="open")

    def iter_connected(self, limit_s: float) -> Iterator[dict[Address, Connection]]:
        deadline, max_connecting = time.monotonic() + limit_s + _GRACE_S, _INITIAL_CONNECTIONS
        while self._not_started or self._connecting:
            self._start(max_connecting)
            rest_s = max(0.05, deadline - time.monotonic())
            done, _ = wait(
                self._connecting, min(rest_s, _DOUBLE_AFTER_S) if self._not_started else rest_s, FIRST_COMPLETED
            )
            if connections := self._collect({future: self._connecting.pop(future) for future in done}):
                yield connections
            if not done and (not self._not_started or time.monotonic() >= deadline):
                break
            max_connecting = _INITIAL_CONNECTIONS if done else 2 * len(self._connecting)
        reason = f"not connected and signed in within {limit_s:g} s"
        for host, port in (*self._connecting.values(), *self._not_started):
            self.problems.append(Unreachable(f"cluster {self._cluster}, broker {format_address(host, port)}: {reason}"))

    def _start(self, max_connecting: int) -> None:
        while self._not_started and len(self._connecting) < max_connecting:
            address = self._not_started.pop(0)
            self._connecting[self._pool.submit(copy_context().run, self._open, address)] = address

    def _open(self, address: Address) -> Connection:
        connection = self._open_one(address)
        if connection.has_responded:
            return connection
        self._awaiting_response[address] = connection
        try:
            if self._closed:
                connection.shut_down()
            return wait_until_responsive(connection)
        finally:
            del self._awaiting_response[address]

    def _collect(self, done: Mapping[Future[Connection], Address]) -> dict[Address, Connection]:
        connections = dict[Address, Connection]()
        for future, address in done.items():
            try:
                connections[address] = future.result()
            except BadRequest:  # local: unreadable file, unknown mechanism
                for other in done:
                    _close_late(other)
                raise
            except MirrorError as error:
                self.problems.append(error)
        return connections

    def close(self) -> None:
        """A slow broker keeps its thread, not the caller, nor the process."""
        self._pool.shutdown(wait=False)
        self._closed = True
        for connection in list(self._awaiting_response.values()):
            connection.shut_down()
        for future in self._connecting:
            future.add_done_callback(_close_late)


def _close_late(future: Future[Connection]) -> None:
    if future.exception() is None:
        future.result().close()


def no_broker_answered(cluster: str, bootstrap: str, problems: Sequence[MirrorError]) -> MirrorError:
    refused = [problem for problem in problems if isinstance(problem, AuthenticationFailed)]
    if refused and len(refused) == len(problems):
        return BadRequest(str(refused[0]))  # wrong everywhere, not unreachable
    reasons = "; ".join(str(problem).removeprefix(f"cluster {cluster}, ") for problem in problems)
    # A cluster that refuses us is up and may accept writes: never call it silent.
    is_reachable = any(isinstance(p, ConnectionRejected) or not isinstance(p, Unreachable) for p in problems)
    is_down = bool(problems) and all(isinstance(problem, ConnectionRefused) for problem in problems)
    silent_kind = ConnectionRefused if is_down else Unreachable
    return (AuthenticationFailed if refused else ConnectionRejected if is_reachable else silent_kind)(
        f"cluster {cluster}: no broker answers ({reasons or bootstrap}): see that it is up, and that its"
        " bootstrap.servers are right",
        subject=cluster,
    )

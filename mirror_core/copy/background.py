"""Runs what would hold up the task's loop in threads; finished work wakes the loop."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Final, TypeVar

from mirror_core.kafka.client import ClusterClient, ClusterMetadata
from mirror_core.kafka.config import Principal
from mirror_core.kafka.connection import Connection, wait_until_responsive
from mirror_core.model.errors import RemoteFault, Unreachable

RESPONSE_TIMEOUT_S: Final = 10.0
_MAX_OPENING: Final = 32
_GRACE_S: Final = 0.1


class ConnectionOpener:
    """One cluster's. A broker that hangs delays only the partitions that it leads."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(_MAX_OPENING, thread_name_prefix="connect")
        self._brokers: Mapping[int, tuple[str, int]] = {}
        self._opening: dict[int, Future[Connection]] = {}
        self._failure_reasons: dict[int, str] = {}

    def set_brokers(self, cluster: ClusterMetadata) -> None:
        self._brokers = cluster.brokers

    def start_opening(self, brokers: Iterable[int]) -> None:
        for broker in sorted(set(brokers) - self._opening.keys()):
            address = self._address(broker)
            self._opening[broker] = self._pool.submit(copy_context().run, self._open, address)

    def try_start_opening(self, brokers: Iterable[int]) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for broker in brokers:
            try:
                self.start_opening([broker])
            except Unreachable as error:
                reasons[broker] = str(error)
        return reasons

    def get_opening(self, broker: int) -> Future[Connection] | None:
        return self._opening.get(broker)

    def find_unconnected(self, brokers: Collection[int]) -> dict[int, str]:
        reasons = self.try_start_opening(brokers)
        for broker, opening in {
            broker_id: self._opening[broker_id] for broker_id in brokers if broker_id not in reasons
        }.items():
            if not opening.done():
                reason = f"cluster {self._client.name}, broker {broker}: no answer on a new connection yet"
                reasons[broker] = self._failure_reasons.get(broker, reason)
            elif isinstance(error := opening.exception(), RemoteFault):
                reasons[broker] = self._failure_reasons[broker] = str(error)
                del self._opening[broker]
            elif error is not None:
                raise error
        return reasons

    def has_failed(self, broker: int) -> bool:
        """False while the first attempt is only slow."""
        return broker in self._failure_reasons or broker not in self._opening

    def make_opener(self, broker: int) -> Callable[[], Connection]:
        return partial(self._open, self._address(broker))

    def connect(self, broker: int) -> Connection:
        opening = self._opening.pop(broker, None)
        return self._open(self._address(broker)) if opening is None else opening.result()

    def _address(self, broker: int) -> tuple[str, int]:
        try:
            return self._brokers[broker]
        except KeyError:
            raise Unreachable(f"cluster {self._client.name}: broker {broker} is not in the cluster now") from None

    def _open(self, address: tuple[str, int]) -> Connection:
        connection = Connection(self._client.config, Principal.DATA, *address, timeout_s=RESPONSE_TIMEOUT_S)
        return wait_until_responsive(connection, for_copying=True)

    def close(self) -> None:
        for opening in self._opening.values():
            opening.add_done_callback(_close_unused)
        self._opening = {}
        self._pool.shutdown(wait=False)


def wait_for_connections(alternatives: Collection[Set[Future[Connection]]], limit_s: float) -> None:
    """Waits until one of these sets is fully connected, then as long again plus a moment: others may hang."""
    started_at = time.monotonic()
    deadline = started_at + limit_s
    pending = set[Future[Connection]]().union(*alternatives)
    while pending and not any(all(map(_is_connected, connections)) for connections in alternatives):
        done, pending = wait(pending, max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
        if not done:
            return
    now = time.monotonic()
    wait(pending, min(_GRACE_S + now - started_at, max(0.0, deadline - now)))


def _is_connected(opening: Future[Connection]) -> bool:
    return opening.done() and opening.exception() is None


def _close_unused(unused: Future[Connection]) -> None:
    if unused.exception() is None:
        unused.result().close()


ThreadResult = TypeVar("ThreadResult")
_MAX_THREADS: Final = 64


class BackgroundThreads:
    """A hung broker blocks only its own thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="background")
        self.wakeup_socket, self._wakeup_sender = socket.socketpair()
        for sock in (self.wakeup_socket, self._wakeup_sender):
            sock.setblocking(False)

    def submit(self, work: Callable[[], ThreadResult]) -> Future[ThreadResult]:
        future = self._pool.submit(copy_context().run, work)
        future.add_done_callback(self._wake)
        return future

    def _wake(self, future: Future[ThreadResult]) -> None:
        with suppress(OSError):  # full of wakeups already, or closed
            self._wakeup_sender.send(b"\0")

    def clear_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self.wakeup_socket.recv(4096):
                pass

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self.wakeup_socket.close()
        self._wakeup_sender.close()

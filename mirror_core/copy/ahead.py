"""Opens connections to brokers in background threads: a distant broker takes a second, a hung one
never answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from typing import Final

from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.config import Principal
from mirror_core.kafka.connection import Connection, answering
from mirror_core.model.errors import RemoteFault, Unreachable

ANSWER_TIMEOUT_S: Final = 10.0
_AT_ONCE: Final = 32
_BRIEF_S: Final = 0.1


class Ahead:
    """One cluster's connections for one task. A broker that hangs delays only the partitions that it
    leads."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="connect")
        self._brokers: Mapping[int, tuple[str, int]] = {}
        self._opening: dict[int, Future[Connection]] = {}
        self._failed: dict[int, str] = {}

    def learn(self, cluster: ClusterView) -> None:
        self._brokers = cluster.brokers

    def begin(self, brokers: Iterable[int]) -> None:
        for broker in sorted(set(brokers) - self._opening.keys()):
            address = self._address(broker)
            self._opening[broker] = self._pool.submit(copy_context().run, self._open, address)

    def begin_some(self, brokers: Iterable[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        for broker in brokers:
            try:
                self.begin([broker])
            except Unreachable as error:
                found[broker] = str(error)
        return found

    def begun(self, broker: int) -> Future[Connection] | None:
        return self._opening.get(broker)

    def missing(self, brokers: Collection[int]) -> dict[int, str]:
        found = self.begin_some(brokers)
        for broker, begun in {one: self._opening[one] for one in brokers if one not in found}.items():
            if not begun.done():
                words = f"cluster {self._client.name}, broker {broker}: no answer on a new connection yet"
                found[broker] = self._failed.get(broker, words)
            elif isinstance(error := begun.exception(), RemoteFault):
                found[broker] = self._failed[broker] = str(error)
                del self._opening[broker]
            elif error is not None:
                raise error
        return found

    def failed(self, broker: int) -> bool:
        """False while the first attempt is only slow."""
        return broker in self._failed or broker not in self._opening

    def later(self, broker: int) -> Callable[[], Connection]:
        return partial(self._open, self._address(broker))

    def connect(self, broker: int) -> Connection:
        begun = self._opening.pop(broker, None)
        return self._open(self._address(broker)) if begun is None else begun.result()

    def _address(self, broker: int) -> tuple[str, int]:
        try:
            return self._brokers[broker]
        except KeyError:
            raise Unreachable(f"cluster {self._client.name}: broker {broker} is not in the cluster now") from None

    def _open(self, address: tuple[str, int]) -> Connection:
        connection = Connection(self._client.config, Principal.DATA, *address, timeout_s=ANSWER_TIMEOUT_S)
        return answering(connection, measured=True)

    def close(self) -> None:
        for begun in self._opening.values():
            begun.add_done_callback(_close)
        self._opening = {}
        self._pool.shutdown(wait=False)


def await_first(needed: Collection[Set[Future[Connection]]], limit_s: float) -> None:
    """Waits until one of these sets is fully connected, then as long again plus a moment for the others.

    The others usually follow closely, and one of them may hang.
    """
    began = time.monotonic()
    deadline = began + limit_s
    pending = set[Future[Connection]]().union(*needed)
    while pending and not any(all(map(_there, one)) for one in needed):
        done, pending = wait(pending, max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
        if not done:
            return
    now = time.monotonic()
    wait(pending, min(_BRIEF_S + now - began, max(0.0, deadline - now)))


def _there(begun: Future[Connection]) -> bool:
    return begun.done() and begun.exception() is None


def _close(unused: Future[Connection]) -> None:
    if unused.exception() is None:
        unused.result().close()

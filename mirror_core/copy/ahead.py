"""Connections to a cluster's brokers that are opened before they are needed: those far away take a second, and some
brokers never answer."""

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
"""For each step of signing in, and for the rest of an answer of which something has come."""
_AT_ONCE: Final = 32
_BRIEF_S: Final = 0.1


class Ahead:
    """Of one cluster and task. A broker that hangs keeps only what it leads waiting."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="connect")
        self._brokers: Mapping[int, tuple[str, int]] = {}
        self._opening: dict[int, Future[Connection]] = {}
        self._failed: dict[int, str] = {}
        """Why the last attempt failed: it is the reason while the next one is under way."""

    def learn(self, cluster: ClusterView) -> None:
        """Where brokers are from now on."""
        self._brokers = cluster.brokers

    def begin(self, brokers: Iterable[int]) -> None:
        """Those that lead something, and are not opened yet. Unreachable when nobody says where they are."""
        for broker in sorted(set(brokers) - self._opening.keys()):
            address = self._address(broker)
            self._opening[broker] = self._pool.submit(copy_context().run, self._open, address)

    def begin_some(self, brokers: Iterable[int]) -> dict[int, str]:
        """The same; of which nobody says where they are, and why."""
        found: dict[int, str] = {}
        for broker in brokers:
            try:
                self.begin([broker])
            except Unreachable as error:
                found[broker] = str(error)
        return found

    def begun(self, broker: int) -> Future[Connection] | None:
        """The connection to it, if it has been begun and is not in use."""
        return self._opening.get(broker)

    def missing(self, brokers: Collection[int]) -> dict[int, str]:
        """To which of these there is no connection yet, and why. Those that failed are begun anew by the next call."""
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
        """Whether an attempt has failed, or nobody says where it is: not only that the first one takes its time."""
        return broker in self._failed or broker not in self._opening

    def later(self, broker: int) -> Callable[[], Connection]:
        """How to open one more, in a thread: it takes as long as the broker lets it. Unreachable when nobody says where
        that one is."""
        return partial(self._open, self._address(broker))

    def connect(self, broker: int) -> Connection:
        """The one that was begun, once; or a new one."""
        begun = self._opening.pop(broker, None)
        return self._open(self._address(broker)) if begun is None else begun.result()

    def _address(self, broker: int) -> tuple[str, int]:
        """Nobody is asked here: who tells who leads something says where the brokers are."""
        try:
            return self._brokers[broker]
        except KeyError:
            raise Unreachable(f"cluster {self._client.name}: broker {broker} is not in the cluster now") from None

    def _open(self, address: tuple[str, int]) -> Connection:
        connection = Connection(self._client.config, Principal.DATA, *address, timeout_s=ANSWER_TIMEOUT_S)
        return answering(connection, measured=True)

    def close(self) -> None:
        """Those that nobody needed."""
        for begun in self._opening.values():
            begun.add_done_callback(_close)
        self._opening = {}
        self._pool.shutdown(wait=False)


def await_first(needed: Collection[Set[Future[Connection]]], limit_s: float) -> None:
    """Wait until all connections of one of these are there, and as long again, and a little, for those of the others:
    they are mostly close behind, and one may hang."""
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

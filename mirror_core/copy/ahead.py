"""Connections to a cluster's brokers that are opened before they are needed: those far away take a second."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.kafka.connection import Connection

_ANSWER_TIMEOUT_S: Final = 40.0
"""Longer than the broker's own limit for a Produce, so that its answer comes before we give the connection up."""


class Ahead:
    """Of one cluster and task. A broker that hangs keeps only whoever needs it."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(thread_name_prefix="connect")
        self._opening: dict[int, Future[Connection]] = {}

    def begin(self, brokers: Iterable[int]) -> None:
        """Those that lead something, and are not opened yet. Unreachable when nobody says where they are."""
        for broker in sorted(set(brokers) - self._opening.keys()):
            address = self._client.address(broker)
            self._opening[broker] = self._pool.submit(copy_context().run, self._open, address)

    def connect(self, client: ClusterClient, broker: int) -> Connection:
        """The one that was begun, once; or a new one."""
        begun = self._opening.pop(broker, None)
        return self._open(client.address(broker)) if begun is None else begun.result()

    def _open(self, address: tuple[str, int]) -> Connection:
        return Connection(self._client.config, Principal.DATA, *address, timeout_s=_ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Those that nobody needed."""
        for begun in self._opening.values():
            begun.add_done_callback(_close)
        self._opening = {}
        self._pool.shutdown(wait=False)


def _close(unused: Future[Connection]) -> None:
    if unused.exception() is None:
        unused.result().close()

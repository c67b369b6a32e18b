"""Parallel connects: a hanging broker delays no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Final

from mirror_core.kafka.connection import Connection, answering
from mirror_core.model.errors import BadRequest, MirrorError, NotLetIn, SignInFailed, Unreachable
from mirror_core.model.text import format_address

Address = tuple[str, int]

_AT_FIRST: Final = 16
_MORE_S: Final = 0.5
"""Then twice as many start. When a cluster comes back, all tasks connect at once, perhaps to hundreds
of brokers."""
_GRACE_S: Final = 0.5


class Opening:
    """Those still connecting at `close` are closed on completion."""

    def __init__(self, cluster: str, open_one: Callable[[Address], Connection], addresses: Sequence[Address]) -> None:
        self.problems: list[MirrorError] = []
        """At the end also timeouts."""
        self._cluster = cluster
        self._open_one = open_one
        self._left = list(addresses)
        self._under_way: dict[Future[Connection], Address] = {}
        self._unheard: dict[Address, Connection] = {}
        self._closed = False
        self._pool = ThreadPoolExecutor(len(addresses), thread_name_prefix="open")

    def connected(self, limit_s: float) -> Iterator[dict[Address, Connection]]:
        """As they come, until all are done or the time limit ends."""
        deadline, most = time.monotonic() + limit_s + _GRACE_S, _AT_FIRST
        while self._left or self._under_way:
            self._begin(most)
            rest_s = max(0.05, deadline - time.monotonic())
            done, _ = wait(self._under_way, min(rest_s, _MORE_S) if self._left else rest_s, FIRST_COMPLETED)
            if found := self._there({future: self._under_way.pop(future) for future in done}):
                yield found
            if not done and (not self._left or time.monotonic() >= deadline):
                break
            most = _AT_FIRST if done else 2 * len(self._under_way)
        late = f"not connected and signed in within {limit_s:g} s"
        for host, port in (*self._under_way.values(), *self._left):
            self.problems.append(Unreachable(f"cluster {self._cluster}, broker {format_address(host, port)}: {late}"))

    def _begin(self, most: int) -> None:
        while self._left and len(self._under_way) < most:
            address = self._left.pop(0)
            self._under_way[self._pool.submit(copy_context().run, self._open, address)] = address

    def _open(self, address: Address) -> Connection:
        """Waits for a response: a kernel accepts connections for hanging brokers, too."""
        connection = self._open_one(address)
        if connection.greeted:
            return connection
        self._unheard[address] = connection
        try:
            if self._closed:
                connection.cut()
            return answering(connection)
        finally:
            del self._unheard[address]

    def _there(self, done: Mapping[Future[Connection], Address]) -> dict[Address, Connection]:
        found = dict[Address, Connection]()
        for future, address in done.items():
            try:
                found[address] = future.result()
            except BadRequest:  # local: unreadable file, unknown mechanism
                for one in done:
                    _close(one)
                raise
            except MirrorError as error:
                self.problems.append(error)
        return found

    def close(self) -> None:
        """A slow broker keeps its thread, not the caller, nor the process."""
        self._pool.shutdown(wait=False)
        self._closed = True
        for connection in list(self._unheard.values()):
            connection.cut()
        for future in self._under_way:
            future.add_done_callback(_close)


def _close(late: Future[Connection]) -> None:
    if late.exception() is None:
        late.result().close()


def nobody_answered(cluster: str, bootstrap: str, problems: Sequence[MirrorError]) -> MirrorError:
    """With each broker's reason."""
    refused = [problem for problem in problems if isinstance(problem, SignInFailed)]
    if refused and len(refused) == len(problems):
        return BadRequest(str(refused[0]))  # wrong everywhere, not unreachable
    reasons = "; ".join(str(problem) for problem in problems)
    # A cluster that refuses us is up and may accept writes: never call it silent.
    there = any(isinstance(p, NotLetIn) or not isinstance(p, Unreachable) for p in problems)
    return (SignInFailed if refused else NotLetIn if there else Unreachable)(
        f"cluster {cluster}: no broker of {bootstrap} answered: {reasons}; "
        "see that the cluster is up, and that its bootstrap.servers are right"
    )

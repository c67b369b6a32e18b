"""Connections to several brokers, opened at the same time: nobody waits for one that hangs while another answers."""

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
"""After so long without any answer twice as many are begun. All tasks meet a cluster that comes back at the same time,
and it may have hundreds of brokers."""
_GRACE_S: Final = 0.5


class Opening:
    """Those that are still under way when it is closed are closed as soon as they are there."""

    def __init__(self, cluster: str, open_one: Callable[[Address], Connection], addresses: Sequence[Address]) -> None:
        self.problems: list[MirrorError] = []
        """Of those that failed; when all has been waited for, of those that are late, too."""
        self._cluster = cluster
        self._open_one = open_one
        self._left = list(addresses)
        self._under_way: dict[Future[Connection], Address] = {}
        self._unheard: dict[Address, Connection] = {}
        """Connected, and waiting for the broker's first word."""
        self._closed = False
        self._pool = ThreadPoolExecutor(len(addresses), thread_name_prefix="open")

    def connected(self, limit_s: float) -> Iterator[dict[Address, Connection]]:
        """Those that are there, as soon as there is one: until none is left, or none comes within the limit of all."""
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
        """A kernel takes connections for a broker that hangs: it is there when it has said something."""
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
            except BadRequest:  # a file that cannot be read, a mechanism that we do not know: said before any broker
                for one in done:
                    _close(one)
                raise
            except MirrorError as error:
                self.problems.append(error)
        return found

    def close(self) -> None:
        """A broker that answers drop by drop keeps its thread, not us. One that says nothing does not keep the process
        from ending, either."""
        self._pool.shutdown(wait=False)
        self._closed = True
        for connection in list(self._unheard.values()):
            connection.cut()
        for future in self._under_way:
            future.add_done_callback(_close)


def _close(late: Future[Connection]) -> None:
    """A connection that nobody waits for any more."""
    if late.exception() is None:
        late.result().close()


def nobody_answered(cluster: str, bootstrap: str, problems: Sequence[MirrorError]) -> MirrorError:
    """What to say of a cluster of which no broker has answered: what each has said instead."""
    refused = [problem for problem in problems if isinstance(problem, SignInFailed)]
    if refused and len(refused) == len(problems):
        return BadRequest(str(refused[0]))  # wrong everywhere; say that, not "unreachable"
    reasons = "; ".join(str(problem) for problem in problems)
    # Who lets nobody in is there, and may take writes: it must not be taken for a cluster that is silent.
    there = any(isinstance(p, NotLetIn) or not isinstance(p, Unreachable) for p in problems)
    return (SignInFailed if refused else NotLetIn if there else Unreachable)(
        f"cluster {cluster}: no broker of {bootstrap} answered: {reasons}; "
        "see that the cluster is up, and that its bootstrap.servers are right"
    )

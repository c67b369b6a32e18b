"""Recovers the writer of a lease that is still ours.

Brokers fence a producer whose transaction timed out, and a new writer fences whoever has the id. So it is made only
when the state topic says that the lease is ours, and kept only if it says so again afterwards: a process that took the
id in between is refused its next write; one that wrote its lease has the mirror.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import LostOwnership, Unwritten
from mirror_core.model.mirror import Lease
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole
from mirror_core.state.writer import StateWriter, data_id


class Regaining:
    """Own thread: hanging brokers block nothing."""

    def __init__(
        self, cluster: ClusterConfig, lease: Lease, may_go_on: Callable[[State], None], *, pause_s: float
    ) -> None:
        """After a pause. `check_may_write` raises if the owner must stop."""
        self._cluster = cluster
        self._lease = lease
        self._may_go_on = may_go_on
        self._pause_s = pause_s
        self._given_up = threading.Event()
        self._found: Future[StateWriter] = Future()
        thread = threading.Thread(target=copy_context().run, args=(self._run,), name="regaining", daemon=True)
        thread.start()

    @property
    def done(self) -> bool:
        return self._found.done()

    def writer(self, timeout_s: float = 0.0) -> StateWriter:
        """LostOwnership, a RemoteFault, or what `check_may_write` raises."""
        return self._found.result(timeout_s)

    def give_up(self) -> None:
        self._given_up.set()

    def _run(self) -> None:
        try:
            self._found.set_result(self._regained())
        except BaseException as error:  # noqa: BLE001 - raised by `writer`
            error.__context__ = None  # frames hold connections
            self._found.set_exception(error.with_traceback(None))

    def _regained(self) -> StateWriter:
        if not self._given_up.wait(self._pause_s):
            self._check(read_whole(self._cluster))
        if self._given_up.is_set():
            raise Unwritten("it was given up")
        with StateWriter(self._cluster, data_id(self._lease.mirror)) as writer:
            self._check(writer.state)
        return writer

    def _check(self, state: State) -> None:
        mine = self._lease
        state.require(mine.mirror)
        found = state.leases.get(mine.mirror)
        if found is None or (found.owner, found.generation) != (mine.owner, mine.generation) or found.released:
            who = f"{found.owner} (generation {found.generation})" if found else "nobody"
            raise LostOwnership(
                f"mirror {mine.mirror}: its lease is {who}'s by now; this process, which could not write the state "
                "topic for a while, stops here"
            )
        self._may_go_on(state)

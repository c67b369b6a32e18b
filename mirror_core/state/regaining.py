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
from mirror_core.model.errors import LostOwnership, StateNotWritten
from mirror_core.model.mirror import Lease
from mirror_core.state.records import State
from mirror_core.state.topic import read_complete_state
from mirror_core.state.writer import StateWriter, make_data_id


class LeaseRecovery:
    """Own thread: hanging brokers block nothing."""

    def __init__(
        self, cluster: ClusterConfig, lease: Lease, check_may_write: Callable[[State], None], *, pause_s: float
    ) -> None:
        """After a pause. `check_may_write` raises if the owner must stop."""
        self._cluster = cluster
        self._lease = lease
        self._check_may_write = check_may_write
        self._pause_s = pause_s
        self._cancelled = threading.Event()
        self._result: Future[StateWriter] = Future()
        thread = threading.Thread(target=copy_context().run, args=(self._run,), name="regaining", daemon=True)
        thread.start()

    @property
    def is_done(self) -> bool:
        return self._result.done()

    def get_writer(self, timeout_s: float = 0.0) -> StateWriter:
        """LostOwnership, a RemoteFault, or what `check_may_write` raises."""
        return self._result.result(timeout_s)

    def cancel(self) -> None:
        self._cancelled.set()

    def _run(self) -> None:
        try:
            self._result.set_result(self._recover_writer())
        except BaseException as error:  # noqa: BLE001 - raised by `writer`
            error.__context__ = None  # frames hold connections
            self._result.set_exception(error.with_traceback(None))

    def _recover_writer(self) -> StateWriter:
        if not self._cancelled.wait(self._pause_s):
            self._check_lease(read_complete_state(self._cluster))
        if self._cancelled.is_set():
            raise StateNotWritten("it was given up")
        with StateWriter(self._cluster, make_data_id(self._lease.mirror)) as writer:
            self._check_lease(writer.state)
        return writer

    def _check_lease(self, state: State) -> None:
        own_lease = self._lease
        state.require_readable(own_lease.mirror)
        current_lease = state.leases.get(own_lease.mirror)
        if (
            current_lease is None
            or (current_lease.owner, current_lease.generation) != (own_lease.owner, own_lease.generation)
            or current_lease.released
        ):
            new_owner = f"{current_lease.owner} (generation {current_lease.generation})" if current_lease else "nobody"
            raise LostOwnership(
                f"mirror {own_lease.mirror}: its lease is {new_owner}'s by now; this process, which could not write the state "
                "topic for a while, stops here"
            )
        self._check_may_write(state)

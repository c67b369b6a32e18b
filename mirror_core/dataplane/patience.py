"""Renews the lease during slow calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from mirror_core.model.clock import now_ms
from mirror_core.model.errors import StateNotWritten, Unreachable
from mirror_core.state.lease import HeldLease

WorkResult = TypeVar("WorkResult")
_RENEW_INTERVAL_S: Final = 0.1


class Closeable(Protocol):
    def close(self) -> None: ...


class LeaseKeepalive:
    """One call at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="at-work")
        self._current_work: Future[Any] = Future()
        self._current_work.set_result(None)

    def run_renewing(self, lease: HeldLease, work: Callable[[], WorkResult], until_ms: int | None = None) -> WorkResult:
        """Runs `work` in another thread and returns its result.

        Raises Unreachable when it is not done by `until_ms` (wall clock): a late result is outdated. Nothing else
        starts before it has ended. Raises LostOwnership like the lease.
        """
        if not self._current_work.done():
            raise Unreachable("the last look at both clusters is not over yet")
        self._current_work = future = self._pool.submit(copy_context().run, work)
        while not future.done():
            if until_ms is not None and now_ms() >= until_ms:
                raise Unreachable("the look at both clusters is not over yet")
            with suppress(StateNotWritten):  # the next writer raises it
                lease.renew()
            wait((future,), timeout=_RENEW_INTERVAL_S)
        return future.result()

    @contextmanager
    def close_after_work(self, *resources: Closeable) -> Iterator[None]:
        """Closes the resources once the work has ended; does not wait: a hung call may open connections later."""
        try:
            yield
        finally:
            self._pool.shutdown(wait=False)
            for resource in resources:
                self._current_work.add_done_callback(partial(_close_resource, resource))


def _close_resource(resource: Closeable, _: Future[Any]) -> None:
    resource.close()

"""Renews the lease during slow calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Unreachable, Unwritten
from mirror_core.state.lease import HeldLease

T = TypeVar("T")
_TICK_S: Final = 0.1


class Closing(Protocol):
    def close(self) -> None: ...


class Patience:
    """One call at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="at-work")
        self._doing: Future[Any] = Future()
        self._doing.set_result(None)

    def until_done(self, lease: HeldLease, work: Callable[[], T], until_ms: int | None = None) -> T:
        """Runs `work` in another thread and returns its result.

        Raises Unreachable when it is not done by `until_ms` (wall clock): a late result is outdated. Nothing else
        starts before it has ended. Raises LostOwnership like the lease.
        """
        if not self._doing.done():
            raise Unreachable("the last look at both clusters is not over yet")
        self._doing = doing = self._pool.submit(copy_context().run, work)
        while not doing.done():
            if until_ms is not None and now_ms() >= until_ms:
                raise Unreachable("the look at both clusters is not over yet")
            with suppress(Unwritten):  # the next writer raises it
                lease.beat()
            wait((doing,), timeout=_TICK_S)
        return doing.result()

    @contextmanager
    def lending(self, *used: Closing) -> Iterator[None]:
        """Closes the resources once the work has ended; does not wait: a hung call may open connections later."""
        try:
            yield
        finally:
            self._pool.shutdown(wait=False)
            for one in used:
                self._doing.add_done_callback(partial(_close, one))


def _close(one: Closing, _: Future[Any]) -> None:
    one.close()

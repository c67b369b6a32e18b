"""Background threads of one task: comparisons of logs, metadata requests, connections. Finished work
wakes the loop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Final, TypeVar

Found = TypeVar("Found")

_AT_ONCE: Final = 64


class Beside:
    """A hung broker blocks only the thread that waits for it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="beside")
        self.woken, self._wakes = socket.socketpair()
        for one in (self.woken, self._wakes):
            one.setblocking(False)

    def begin(self, work: Callable[[], Found]) -> Future[Found]:
        begun = self._pool.submit(copy_context().run, work)
        begun.add_done_callback(self._wake)
        return begun

    def _wake(self, ended: Future[Found]) -> None:
        with suppress(OSError):  # full of wakeups already, or closed
            self._wakes.send(b"\0")

    def heard(self) -> None:
        with suppress(BlockingIOError):
            while self.woken.recv(4096):
                pass

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self.woken.close()
        self._wakes.close()

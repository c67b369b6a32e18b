"""What a task does beside its loop: looks into logs, and connecting where gaps are to be filled. The ends of such
work, in threads, wake the loop."""

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
    """Threads of one task. Who waits for a broker that hangs keeps its thread, and nobody else's."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="beside")
        self.woken, self._wakes = socket.socketpair()
        """To be read when something has ended, and until `heard`."""
        for one in (self.woken, self._wakes):
            one.setblocking(False)

    def begin(self, work: Callable[[], Found]) -> Future[Found]:
        begun = self._pool.submit(copy_context().run, work)
        begun.add_done_callback(self._wake)
        return begun

    def _wake(self, ended: Future[Found]) -> None:
        with suppress(OSError):  # it is full of such news already, or nobody hears any
            self._wakes.send(b"\0")

    def heard(self) -> None:
        """What has ended so far is known."""
        with suppress(BlockingIOError):
            while self.woken.recv(4096):
                pass

    def close(self) -> None:
        """Wait for nobody."""
        self._pool.shutdown(wait=False)
        self.woken.close()
        self._wakes.close()

"""Background threads of one task: comparisons of logs, metadata requests, connections. Finished work
wakes the loop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Final, TypeVar

ThreadResult = TypeVar("ThreadResult")

_MAX_THREADS: Final = 64


class BackgroundThreads:
    """A hung broker blocks only the thread that waits for it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="beside")
        self.wakeup_socket, self._wakeup_sender = socket.socketpair()
        for sock in (self.wakeup_socket, self._wakeup_sender):
            sock.setblocking(False)

    def submit(self, work: Callable[[], ThreadResult]) -> Future[ThreadResult]:
        future = self._pool.submit(copy_context().run, work)
        future.add_done_callback(self._wake)
        return future

    def _wake(self, future: Future[ThreadResult]) -> None:
        with suppress(OSError):  # full of wakeups already, or closed
            self._wakeup_sender.send(b"\0")

    def clear_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self.wakeup_socket.recv(4096):
                pass

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self.wakeup_socket.close()
        self._wakeup_sender.close()

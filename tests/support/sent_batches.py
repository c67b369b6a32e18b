"""Sent batches, shared by tests."""

from __future__ import annotations

import socket
from collections.abc import Callable

from mirror_core.kafka.sockets import receive
from mirror_core.model.errors import Unreachable


def reading(sock: socket.socket, broker: int) -> Callable[..., int]:
    """As of a connection that has this socket."""

    def receive_chunk(view: memoryview, *, whole: bool = True, brief: bool = False) -> int:
        try:
            count = receive(sock, view, whole=whole, wait=not brief)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Unreachable(f"broker {broker}: {error}") from None
        if not count:
            raise Unreachable(f"broker {broker}: it closed the connection")
        return count

    return receive_chunk

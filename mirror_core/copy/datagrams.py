"""What tasks tell their driver by datagram (UDP): on its own machine, and nothing that may not get lost."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Final, Self

LARGEST: Final = 65_535
"""Bytes; a datagram holds a little less."""
Address = tuple[str, int]


class Datagrams:
    """Receives on a port of its own, in a thread of its own, while entered."""

    def __init__(self, name: str, host: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((host, 0))
        self.host: str
        self.port: int
        self.host, self.port = self.socket.getsockname()
        self._ended = False
        self._thread = threading.Thread(target=self._listen, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", (self.host, self.port))
        self._thread.join()
        self.socket.close()

    def received(self, datagram: bytes, sender: Address) -> None:
        """One has come."""
        raise NotImplementedError

    def _listen(self) -> None:
        while not self._ended:
            self.received(*self.socket.recvfrom(LARGEST))

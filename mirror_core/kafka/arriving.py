"""A frame that is received as its bytes come: whoever has other connections waits for none of them."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final

from mirror_core.kafka.connection import Connection, frame_size
from mirror_core.model.errors import Unreachable

_LENGTH: Final = 4
"""Bytes that say how long the frame is."""


class Arriving:
    """The next frame of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer, self._have = bytearray(_LENGTH), 0
        self._sized = False
        """The buffer is for the frame, and no longer for its length."""
        self.heard_at = 0.0
        """Monotonic time at which bytes came last."""

    def take(self) -> bytearray | None:
        """The frame, without its length, once all of it has come."""
        while self._have < len(self._buffer):
            count = self._receive(memoryview(self._buffer)[self._have :])
            if not count:
                return None
            self._have += count
            self.heard_at = time.monotonic()
            if not self._sized and self._have == _LENGTH:
                self._buffer, self._have = bytearray(frame_size(self._buffer, self._connection.where)), 0
                self._sized = True
        found = self._buffer
        self._buffer, self._have, self._sized = bytearray(_LENGTH), 0, False
        return found

    def _receive(self, view: memoryview) -> int:
        """Bytes that are there; 0 when there are none. With TLS also while a part of a record is there."""
        where, sock = self._connection.where, self._connection.sock
        tls = isinstance(sock, ssl.SSLSocket)
        try:
            if tls:
                sock.settimeout(0.0)
            count = sock.recv_into(view, 0, 0 if tls else socket.MSG_DONTWAIT)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise Unreachable(f"{where}: connection lost: {error.strerror or type(error).__name__}") from None
        finally:
            if tls:
                sock.settimeout(self._connection.timeout_s)
        if not count:
            raise Unreachable(f"{where}: the broker closed the connection")
        return count

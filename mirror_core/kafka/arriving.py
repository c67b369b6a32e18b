"""Non-blocking reception of one response frame."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final

from mirror_core.kafka.connection import Connection, frame_size
from mirror_core.model.errors import Unreachable

_LENGTH: Final = 4


class Arriving:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer, self._have = bytearray(_LENGTH), 0
        self._sized = False
        self.heard_at = 0.0
        """Monotonic time."""

    def take(self) -> bytearray | None:
        """Without the length prefix; None while bytes are missing."""
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
        """0 when nothing is available; with TLS also while a record is incomplete."""
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

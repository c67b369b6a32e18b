"""Non-blocking reception of one response frame."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final

from mirror_core.kafka.connection import Connection, parse_frame_size
from mirror_core.model.errors import Unreachable

_LENGTH_BYTES: Final = 4


class FrameBuffer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buffer, self._received = bytearray(_LENGTH_BYTES), 0
        self._size_known = False
        self.last_received_at = 0.0
        """Monotonic time."""

    def receive_frame(self) -> bytearray | None:
        """Without the length prefix; None while bytes are missing."""
        while self._received < len(self._buffer):
            count = self._receive(memoryview(self._buffer)[self._received :])
            if not count:
                return None
            self._received += count
            self.last_received_at = time.monotonic()
            if not self._size_known and self._received == _LENGTH_BYTES:
                self._buffer, self._received = bytearray(parse_frame_size(self._buffer, self._connection.where)), 0
                self._size_known = True
        frame = self._buffer
        self._buffer, self._received, self._size_known = bytearray(_LENGTH_BYTES), 0, False
        return frame

    def _receive(self, view: memoryview) -> int:
        """0 when nothing is available; with TLS also while a record is incomplete."""
        where, sock = self._connection.where, self._connection.sock
        is_tls = isinstance(sock, ssl.SSLSocket)
        try:
            if is_tls:
                sock.settimeout(0.0)
            count = sock.recv_into(view, 0, 0 if is_tls else socket.MSG_DONTWAIT)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise Unreachable(f"{where}: connection lost: {error.strerror or type(error).__name__}") from None
        finally:
            if is_tls:
                sock.settimeout(self._connection.timeout_s)
        if not count:
            raise Unreachable(f"{where}: the broker closed the connection")
        return count

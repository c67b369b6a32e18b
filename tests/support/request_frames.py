"""Request frames, shared by tests."""

from __future__ import annotations

import datetime
import io
import socket
from typing import Any

from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

ZERO = i32Timedelta.parse(datetime.timedelta())

METADATA = 3


def frame(connection: socket.socket) -> bytes:
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL) if size else b""


def encoded(kind: Any, answer: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(kind)(buffer, answer)
    return buffer.getvalue()

"""Fake metadata, shared by tests."""

from __future__ import annotations

import datetime
import io
import socket

from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta


def frame(connection: socket.socket) -> bytes:
    """The next request, without its length; empty when there is none any more."""
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL) if size else b""


def answer_metadata(listener: socket.socket, times: int = 1) -> None:
    """So many Metadata requests on one connection, by saying that there is nothing."""
    connection, _ = listener.accept()
    nothing = MetadataResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta()),
        brokers=(),
        cluster_id=None,
        controller_id=BrokerId(-1),
        topics=(),
    )
    with connection:
        for _ in range(times):
            correlation, body = frame(connection)[4:8], io.BytesIO()
            entity_writer(MetadataResponse)(body, nothing)
            said = correlation + b"\0" + body.getvalue()
            connection.sendall(len(said).to_bytes(4, "big") + said)

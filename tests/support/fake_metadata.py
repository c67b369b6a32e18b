"""Fake metadata, shared by tests."""

from __future__ import annotations

import datetime
import io
import socket

from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.primitive import i16, i32Timedelta

FETCH, API_VERSIONS = 1, 18
NEWEST_FETCH = 13


def frame(connection: socket.socket) -> bytes:
    """The next request, without its length; empty when there is none any more."""
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL) if size else b""


def answer_metadata(listener: socket.socket, times: int = 1) -> None:
    """So many Metadata and ApiVersions requests on one connection: there is nothing but Fetch."""
    connection, _ = listener.accept()
    fetch = ApiVersion(api_key=i16(FETCH), min_version=i16(4), max_version=i16(NEWEST_FETCH))
    versions = ApiVersionsResponse(error_code=ErrorCode.none, api_keys=(fetch,))
    nothing = MetadataResponse(
        throttle_time=i32Timedelta.parse(datetime.timedelta()),
        brokers=(),
        cluster_id=None,
        controller_id=BrokerId(-1),
        topics=(),
    )
    with connection:
        for _ in range(times):
            request, body = frame(connection), io.BytesIO()
            if int.from_bytes(request[:2], "big") == API_VERSIONS:
                entity_writer(ApiVersionsResponse)(body, versions)
            else:
                body.write(b"\0")
                entity_writer(MetadataResponse)(body, nothing)
            said = request[4:8] + body.getvalue()
            connection.sendall(len(said).to_bytes(4, "big") + said)

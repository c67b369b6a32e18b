"""Connections opened ahead: to brokers that answer what they are asked, and to one that only takes connections."""

from __future__ import annotations

import datetime
import io
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from mirror_core.copy.ahead import Ahead
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.names import ClusterName
from tests.threads import beside
from tests.unit.test_client import frame

HANGS, WELL = 1, 2
ENOUGH_S = 5.0


@pytest.fixture
def addresses() -> Iterator[dict[int, tuple[str, int]]]:
    with ExitStack() as opened:
        listeners = {broker: opened.enter_context(socket.create_server(("127.0.0.1", 0))) for broker in (HANGS, WELL)}
        well = listeners[WELL]
        opened.enter_context(beside(partial(answer, well), partial(well.shutdown, socket.SHUT_RDWR)))
        yield {broker: listener.getsockname() for broker, listener in listeners.items()}


def answer(listener: socket.socket) -> None:
    """One Metadata request."""
    connection, _ = listener.accept()
    with connection:
        correlation = frame(connection)[4:8]
        body = io.BytesIO()
        nothing = MetadataResponse(
            throttle_time=i32Timedelta.parse(datetime.timedelta()),
            brokers=(),
            cluster_id=None,
            controller_id=BrokerId(-1),
            topics=(),
        )
        entity_writer(MetadataResponse)(body, nothing)
        said = correlation + b"\0" + body.getvalue()
        connection.sendall(len(said).to_bytes(4, "big") + said)


def test_who_takes_a_connection_and_answers_nothing_is_not_connected(addresses: dict[int, tuple[str, int]]) -> None:
    """Whoever finds a place there would wait for it, and all else with it."""
    config = ClusterConfig(ClusterName("east"), {}, {})
    client = cast("ClusterClient", SimpleNamespace(name="east", config=config, address=addresses.__getitem__))
    with closing(Ahead(client)) as ahead:
        ahead.begin(addresses)
        assert ahead.missing([WELL], ENOUGH_S) == {}
        assert list(ahead.missing([HANGS, WELL], 0.2)) == [HANGS]
        ahead.connect(client, WELL).close()

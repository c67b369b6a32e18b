"""A cluster of which one broker hangs: it takes connections, and answers nothing."""

from __future__ import annotations

import socket
import time

import pytest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import MetadataResponse

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fan_out import BrokerTimeout, call_brokers
from mirror_core.model.names import ClusterName
from tests.support.kafka_clients import Pair

pytestmark = [pytest.mark.cluster, pytest.mark.timed]

NO_TOPICS = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
TIMEOUT_S = 30.0
HANGS_S = 1.0


def test_a_broker_that_hangs_is_not_waited_for_where_another_one_answers(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{pair.east.bootstrap}"
        properties = {**pair.east.client_config("admin"), "bootstrap.servers": servers}
        began = time.monotonic()
        with ClusterClient(ClusterConfig(ClusterName("east"), properties, properties), timeout_s=TIMEOUT_S) as client:
            assert client.brokers() == (1,)
        assert time.monotonic() - began < TIMEOUT_S / 2


def test_brokers_are_asked_at_the_same_time_and_one_that_hangs_only_once(pair: Pair) -> None:
    properties = pair.east.client_config("admin")

    def broker_id(connection: Connection) -> int:
        return int(connection.call(NO_TOPICS, MetadataResponse).brokers[0].node_id)

    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ClusterClient(ClusterConfig(ClusterName("east"), properties, properties), timeout_s=HANGS_S) as client,
    ):
        addresses = {1: client.address(1), 2: silent.getsockname(), 3: silent.getsockname()}
        client.address = lambda broker: addresses[broker or 1]  # type: ignore[method-assign]
        began = time.monotonic()
        for _ in range(5):
            found = call_brokers(client, dict.fromkeys(addresses, broker_id))
            assert found[1] == 1
            assert all(isinstance(found[hangs], BrokerTimeout) for hangs in (2, 3))
        assert time.monotonic() - began < 3 * HANGS_S

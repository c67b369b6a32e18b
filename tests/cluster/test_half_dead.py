"""A cluster of which one broker hangs: it takes connections, and answers nothing."""

from __future__ import annotations

import socket
import time

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.names import ClusterName
from tests.brokers import Pair

pytestmark = pytest.mark.cluster

TIMEOUT_S = 30.0


def test_a_broker_that_hangs_is_not_waited_for_where_another_one_answers(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]},{pair.east.bootstrap}"
        properties = {**pair.east.client_config("admin"), "bootstrap.servers": servers}
        began = time.monotonic()
        with ClusterClient(ClusterConfig(ClusterName("east"), properties, properties), timeout_s=TIMEOUT_S) as client:
            assert client.brokers() == (1,)
        assert time.monotonic() - began < TIMEOUT_S / 2

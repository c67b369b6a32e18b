"""Whoever leaves something open is told so itself."""

from __future__ import annotations

import gc
import socket
from types import SimpleNamespace
from typing import cast

import pytest
from aiokafka.errors import KafkaConnectionError

from mirror_core.sandbox.cluster import SandboxCluster
from tests.brokers import read_all_aiokafka


def test_a_reader_that_reaches_nobody_leaves_nothing_open() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.password": "none"}
        port = nobody.getsockname()[1]
        dead = SimpleNamespace(bootstrap=f"127.0.0.1:{port}", client_config=lambda user: login, name="dead")
        with pytest.raises(KafkaConnectionError):
            read_all_aiokafka(cast(SandboxCluster, dead), "topic")
    gc.collect()

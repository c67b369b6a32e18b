"""A client whose broker is there, and of no use."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.model.errors import Unreachable


@pytest.fixture
def dripping() -> Iterator[int]:
    """The port of something that answers whatever it is asked, byte by byte, and never comes to an end."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):  # the client gives up
            connection.sendall((1 << 20).to_bytes(4, "big"))
            while not stop.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        stop.set()
        thread.join()


def test_a_broker_that_never_gets_done_with_its_answer_is_unreachable(dripping: int, tmp_path: Path) -> None:
    """Each wait for a byte is short; all of them together have an end as well."""
    path = tmp_path / "mirrorbook.yaml"
    sasl = "security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: u, sasl.password: p"
    path.write_text(f'clusters: {{east: {{bootstrap.servers: "127.0.0.1:{dripping}", {sasl}}}}}', encoding="utf-8")

    with (
        ClusterClient(load_config(path).cluster("east"), timeout_s=1.0) as client,
        pytest.raises(Unreachable, match=rf"cluster east, broker 127.0.0.1:{dripping}: not connected and signed in"),
    ):
        client.metadata(())

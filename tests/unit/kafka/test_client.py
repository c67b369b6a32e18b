"""A client whose broker is there, and of no use."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.connection_pool import CONNECTION_POOL
from mirror_core.model.errors import RemoteFault, Unreachable
from tests.support.checked_threads import Work, beside
from tests.support.fake_metadata import answer_metadata, frame
from tests.support.waiting import wait_until


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

    with socket.create_server(("127.0.0.1", 0)) as listener, beside(partial(drip, listener), stop.set):
        yield listener.getsockname()[1]


def test_a_broker_that_never_gets_done_with_its_answer_is_unreachable(dripping: int, tmp_path: Path) -> None:
    """Each wait for a byte is short; all of them together have an end as well."""
    path = tmp_path / "mirrorbook.yaml"
    sasl = "security.protocol: SASL_PLAINTEXT, sasl.mechanism: PLAIN, sasl.username: u, sasl.password: p"
    path.write_text(f'clusters: {{east: {{bootstrap.servers: "127.0.0.1:{dripping}", {sasl}}}}}', encoding="utf-8")

    with (
        ClusterClient(load_config(path).cluster("east"), timeout_s=1.0) as client,
        pytest.raises(Unreachable, match=rf"cluster east: .*broker 127.0.0.1:{dripping}: not connected and signed in"),
    ):
        client.metadata(())


@pytest.fixture
def confused() -> Iterator[tuple[int, list[socket.socket]]]:
    """The port of something that answers each request with the number of another one; and whom it has spoken to."""
    seen: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                seen.append(connection)
                while request := frame(connection):
                    number = int.from_bytes(request[4:8], "big") + 7
                    connection.sendall((5).to_bytes(4, "big") + number.to_bytes(4, "big") + b"\0")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        with beside(partial(serve, listener), partial(listener.shutdown, socket.SHUT_RDWR)):
            yield listener.getsockname()[1], seen
        for connection in seen:
            connection.close()


def open_to_all(port: int, tmp_path: Path, more: str = "") -> ClusterConfig:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(f'clusters: {{east: {{bootstrap.servers: "127.0.0.1:{port}{more}"}}}}', encoding="utf-8")
    return load_config(path).cluster("east")


def test_a_connection_with_answers_to_other_questions_is_not_handed_on(
    confused: tuple[int, list[socket.socket]], tmp_path: Path
) -> None:
    port, seen = confused
    config = open_to_all(port, tmp_path)
    with CONNECTION_POOL.keep_connections():
        for _ in range(2):
            with ClusterClient(config, timeout_s=30.0) as client, pytest.raises(RemoteFault, match="was due"):
                client.metadata(())
        assert len(seen) == 2, "the second client has a connection of its own"


def test_when_one_connection_to_a_broker_is_found_dead_the_others_are_not_tried(tmp_path: Path) -> None:
    """One that hangs would cost every client its time limit, for each connection that was kept."""
    with socket.create_server(("127.0.0.1", 0)) as silent, CONNECTION_POOL.keep_connections():
        address = silent.getsockname()[:2]
        config = open_to_all(address[1], tmp_path)
        client = ClusterClient(config, timeout_s=0.2)
        for _ in range(3):
            CONNECTION_POOL.release(
                client.pool_key(address), Connection(config, client.principal, *address, timeout_s=0.2)
            )
        with pytest.raises(Unreachable):
            client.metadata(())
        assert CONNECTION_POOL.acquire(client.pool_key(address)) is None


def test_one_that_only_takes_connections_is_not_waited_for_when_another_one_answers(tmp_path: Path) -> None:
    """Without signing in, and without TLS, nothing else tells them apart."""
    is_asked = threading.Event()

    def answer_after_both_are_asked() -> None:
        assert is_asked.wait(60.0)
        answer_metadata(well, 2)

    def stop() -> None:
        is_asked.set()
        well.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as well:
        silent.settimeout(60.0)
        ports = [listener.getsockname()[1] for listener in (silent, well)]
        config = open_to_all(ports[0], tmp_path, f",127.0.0.1:{ports[1]}")
        with beside(answer_after_both_are_asked, stop), ClusterClient(config, timeout_s=600.0) as client:
            asking = Work(lambda: client.metadata(())).start()
            connection, _ = silent.accept()
            with connection:
                connection.settimeout(60.0)
                assert frame(connection), "it was asked"
                is_asked.set()
                wait_until(lambda: not asking.alive, timeout_s=60.0, why="the other one's answer is taken")
                assert asking.result().topics == {}
                assert connection.recv(1) == b"", "nobody waits for it, and the process may end"


@pytest.mark.parametrize("kept", [True, False])
def test_others_are_asked_soon_when_a_broker_hangs_whose_connection_was_kept_or_that_is_asked_in_a_hurry(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the time that there is must not go to one of three brokers."""

    def ask() -> None:
        with suppress(Unreachable):
            client.metadata(())

    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as other,
        CONNECTION_POOL.keep_connections(),
    ):
        other.settimeout(30.0)
        ports = [listener.getsockname()[1] for listener in (silent, other)]
        config = open_to_all(ports[0], tmp_path, f",127.0.0.1:{ports[1]}")
        client, address = ClusterClient(config, timeout_s=60.0), silent.getsockname()[:2]
        mine = Connection(config, client.principal, *address)
        if kept:
            CONNECTION_POOL.release(client.pool_key(address), mine)
        else:
            monkeypatch.setattr(client, "_connections", {address: mine})
            client.set_fail_fast(True)
        asking = Work(ask).start()
        connection, _ = other.accept()
        connection.close()
        silent.accept()[0].close()
        silent.accept()[0].close()
        asking.join()
        client.close()


class Nonsense:
    """A connection whose answer is half taken when it turns out to make no sense."""

    closed = False
    round_trip_s = 0.0

    def set_timeout(self, seconds: float) -> None:
        pass

    def call(self, *asked: object) -> object:
        raise RemoteFault("the answer makes no sense")

    def iter_responses(self, *asked: object) -> Iterator[object]:
        yield "the first one"
        raise RemoteFault("the answer makes no sense")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("way", ["call", "call_each", "call_controller_each"])
def test_a_connection_whose_answer_made_no_sense_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The rest of that answer would be taken for the next one."""
    address, nonsense = ("127.0.0.1", 1), Nonsense()
    with ClusterClient(open_to_all(1, tmp_path), timeout_s=1.0) as client:
        monkeypatch.setattr(client, "_brokers", {1: address})
        monkeypatch.setattr(client, "_connections", {address: nonsense})
        monkeypatch.setattr(client, "_find_responsive_broker", lambda broker: address)
        with pytest.raises(RemoteFault, match="no sense"):
            getattr(client, way)([None] if way != "call" else None, object, 1)
        assert nonsense.closed
        assert not client._connections

"""Sending to somebody who does not read: what the system does not take comes back, and nothing of it is lost."""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.kafka.sockets import connect, push, receive, to_frame, wait_readable
from tests.cluster.secure import Authority, named
from tests.support.addresses import IPV6, resolve_to
from tests.support.waiting import wait_until

MANY: list[bytes | bytearray | memoryview] = [secrets.token_bytes(size) for size in (1, 70, 3 << 20, 0, 9, 2 << 20)]
WHOLE = b"".join(MANY)

Reads = Callable[[int], bytes]
Link = tuple[socket.socket, Reads]


@contextmanager
def plain(folder: Path) -> Iterator[Link]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs.recv


@contextmanager
def through_tls(folder: Path) -> Iterator[Link]:
    authority, certificate, key = Authority("test"), folder / "certificate", folder / "key"
    authority.write(folder / "ca")
    authority.issue(named("broker"), certificate, key, "127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    accepted: list[ssl.SSLSocket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        greeting = threading.Thread(target=lambda: accepted.append(_greeted(server, listening)))
        greeting.start()
        client = ssl.create_default_context(cafile=str(folder / "ca"))
        with client.wrap_socket(socket.create_connection(listening.getsockname()), server_hostname="127.0.0.1") as ours:
            greeting.join()
            ours.settimeout(7.0)
            with accepted[0] as theirs:
                yield ours, theirs.recv


def _greeted(server: ssl.SSLContext, listening: socket.socket) -> ssl.SSLSocket:
    return server.wrap_socket(listening.accept()[0], server_side=True)


@pytest.fixture(params=[plain, through_tls])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    with request.param(tmp_path) as made:
        yield made


def test_what_is_not_taken_comes_back_and_goes_on_from_there(link: Link) -> None:
    ours, reads = link
    limit = ours.gettimeout()
    rest = push(ours, MANY, 0.0)
    assert rest, "it takes less than that without a reader"
    assert ours.gettimeout() == limit
    again = push(ours, [rest], 0.0)
    assert bytes(rest).endswith(bytes(again)), "nothing was sent twice"
    came = bytearray()
    while again:
        came += reads(1 << 20)
        again = push(ours, [again], 0.0)
    while len(came) < len(WHOLE):
        came += reads(1 << 20)
    assert bytes(came) == WHOLE


def test_who_reads_before_long_gets_all_of_it(link: Link) -> None:
    ours, reads = link
    came = bytearray()

    def read() -> None:
        while len(came) < len(WHOLE):
            came.extend(reads(1 << 16))

    reading = threading.Thread(target=read)
    reading.start()
    assert not push(ours, MANY, 20.0)
    reading.join()
    assert bytes(came) == WHOLE


def test_what_is_wrong_with_a_connection_is_told(link: Link) -> None:
    ours, _ = link
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError, match=r"pipe|shutdown|EOF|protocol|violation"):
        push(ours, MANY, 20.0)


def test_a_wait_ends_when_somebody_takes_something_again() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert push(ours, MANY, 0.0)
        assert wait_readable([ours], 0.0, until_writable=[ours]) == set()
        draining = threading.Timer(0.2, lambda: theirs.recv(8 << 20))
        draining.start()
        found = wait_readable([ours], 20.0, until_writable=[ours])
        draining.join()
        assert found == set(), "it has nothing to read"
        theirs.sendall(b"answer")
        wait_until(
            lambda: wait_readable([ours], 0.0, until_writable=[ours]) == {ours}, timeout_s=20, why="it has by now"
        )


def test_a_frame_begins_with_its_length() -> None:
    assert b"".join(to_frame([b"ab", bytearray(b"c")])) == b"\0\0\0\3abc"


def test_who_takes_a_little_all_the_time_is_not_waited_for_longer(link: Link) -> None:
    ours, reads = link
    stop = threading.Event()

    def dribble() -> None:
        while not stop.wait(0.05):
            reads(1 << 14)

    reading = threading.Thread(target=dribble)
    began = time.monotonic()
    reading.start()
    rest = push(ours, MANY, 0.5)
    took_s = time.monotonic() - began
    stop.set()
    reading.join()
    assert rest
    assert took_s < 5.0, "each standstill would be shorter than that"


def test_what_is_there_is_received_without_waiting_for_more(link: Link) -> None:
    ours, _ = link
    limit = ours.gettimeout()
    view = memoryview(bytearray(10))
    with pytest.raises((BlockingIOError, ssl.SSLWantReadError)):
        receive(ours, view, whole=False, wait=False)
    assert ours.gettimeout() == limit


@pytest.mark.parametrize("listens", ["127.0.0.1", IPV6])
@pytest.mark.parametrize("hosts", [("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_each_address_of_a_brokers_name_is_tried(
    monkeypatch: pytest.MonkeyPatch, listens: str, hosts: tuple[str, str]
) -> None:
    resolve_to(monkeypatch, "broker.test", *hosts)
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    server = socket.create_server((listens, 0), family=family)
    with server, connect("broker.test", server.getsockname()[1], 10.0) as made:
        assert made.getpeername()[0] == listens


def test_an_address_that_is_silent_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network drops IPv6 on its way, and the broker answers on IPv4."""
    resolve_to(monkeypatch, "broker.test", "127.0.0.2", "127.0.0.3", "127.0.0.1")
    real, limits = socket.socket.connect, list[float]()

    def silent(made: socket.socket, address: tuple[str, int]) -> None:
        limits.append(made.gettimeout() or 0.0)
        if address[0] != "127.0.0.1":
            raise TimeoutError
        real(made, address)

    monkeypatch.setattr(socket.socket, "connect", silent)
    with socket.create_server(("127.0.0.1", 0)) as server, connect("broker.test", server.getsockname()[1], 60.0):
        assert limits[0] <= 20.0
        assert 20.0 < limits[1] <= 30.0 < limits[2], "what one does not use the others have"


def test_the_reason_of_the_last_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, "broker.test", "127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        connect("broker.test", port, 10.0)

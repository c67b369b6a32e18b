"""How far away a broker is, and how fresh what it says, by answers that may have lain here; and answers in pieces."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.kafka import marker_link
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode
from mirror_core.kafka.marker_link import FrameBuffer, MarkerLink
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Partition
from tests.cluster.secure import Authority, named

ONE = Partition("orders", 0)
ENDS_AT_7 = {ONE: (ErrorCode.none, 7)}
LIMIT_S = 10.0


@dataclass
class Clock:
    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(marker_link, "time", found)
    return found


class Wire:
    """A link, and the broker at its other end."""

    def __init__(self, ours: socket.socket, broker: socket.socket) -> None:
        self.broker = broker
        self._sent = 0

        def send(parts: list[bytes]) -> None:
            self._sent += 1
            ours.sendall(b"".join((sum(map(len, parts)).to_bytes(4, "big"), *parts)))

        connection = SimpleNamespace(
            sock=ours,
            send=send,
            next_id=lambda: self._sent + 1,
            where="broker 1",
            timeout_s=LIMIT_S,
            round_trip_s=0.002,
            session_ends=False,
            renew_session=lambda: None,
        )
        self.link = MarkerLink(cast("Connection", connection))

    @property
    def answer(self) -> bytes:
        """To the newest question: the log ends at 7."""
        said = struct.pack(">iiih6siihqqi", self._sent, 0, 1, 6, b"orders", 1, 0, 0, -1, 7, 0)
        return len(said).to_bytes(4, "big") + said


@pytest.fixture
def wire() -> Iterator[Wire]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Wire(ours, theirs)


def look(wire: Wire, clock: Clock, *glances: float, taken: float) -> None:
    """Ask, find nothing at each of these times, and then the answer."""
    asked = clock.now
    wire.link.request_log_ends([ONE])
    for glance in glances:
        clock.now = asked + glance
        assert wire.link.receive_log_ends() is None
    clock.now = asked + taken
    wire.broker.sendall(wire.answer)
    assert wire.link.receive_log_ends() == ENDS_AT_7


def test_how_long_an_answer_lay_excuses_no_age(wire: Wire, clock: Clock) -> None:
    """The broker may be near: then somebody may have written since."""
    look(wire, clock, taken=0.15)
    assert wire.link.is_stale(0.15)
    for _ in range(8):
        look(wire, clock, taken=0.09)
    assert wire.link.is_stale(0.11)


def test_how_long_an_answer_took_to_come_does(wire: Wire, clock: Clock) -> None:
    look(wire, clock, 0.1, 0.2, 0.28, taken=0.3)
    assert not wire.link.is_stale(0.3)
    assert wire.link.is_stale(0.7)


def test_a_broker_is_never_taken_for_nearer_than_it_is(wire: Wire, clock: Clock) -> None:
    """A log is watched for longer if it is far away."""
    assert wire.link.round_trip_s() == 0.002, "as was seen when it was connected"
    look(wire, clock, 0.1, 0.2, 0.28, taken=0.3)
    assert wire.link.round_trip_s() == pytest.approx(0.3)


def test_nor_for_further_away_for_how_long_its_answers_lay(wire: Wire, clock: Clock) -> None:
    look(wire, clock, taken=0.002)
    for _ in range(8):
        look(wire, clock, taken=0.7)
    assert wire.link.round_trip_s() == pytest.approx(0.002)


def test_after_an_answer_that_was_taken_late_the_next_is_waited_for(
    wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()

    def readable(sockets: list[socket.socket], limit_s: float) -> None:
        waits.append(limit_s)
        clock.now += limit_s
        if len(waits) == 3:
            wire.broker.sendall(wire.answer)

    monkeypatch.setattr(marker_link, "wait_readable", readable)
    look(wire, clock, taken=0.15)
    assert waits == []
    wire.link.request_log_ends([ONE])
    assert wire.link.receive_log_ends() == ENDS_AT_7
    assert not wire.link.is_stale(sum(waits)), "it is acted upon"
    assert len(waits) == 3
    wire.link.request_log_ends([ONE])
    assert (wire.link.receive_log_ends(), len(waits)) == (None, 3), "it was not late"


def test_it_is_not_waited_for_long(wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    began = clock.now

    def readable(sockets: list[socket.socket], limit_s: float) -> None:
        clock.now += limit_s

    monkeypatch.setattr(marker_link, "wait_readable", readable)
    look(wire, clock, taken=0.15)
    wire.link.request_log_ends([ONE])
    for _ in range(3):
        assert wire.link.receive_log_ends() is None
    assert clock.now - began == pytest.approx(0.15 + 0.6), "by how far away a broker may be"


def test_an_answer_in_pieces_is_taken_when_it_is_whole(wire: Wire) -> None:
    wire.link.request_log_ends([ONE])
    for byte in wire.answer:
        assert wire.link.receive_log_ends() is None
        wire.broker.sendall(bytes([byte]))
    assert wire.link.receive_log_ends() == ENDS_AT_7


def test_nothing_for_too_long_is_no_answer(wire: Wire, clock: Clock) -> None:
    wire.link.send_markers([])
    clock.now += LIMIT_S - 1
    assert wire.link.receive_codes() is None
    clock.now += 2
    with pytest.raises(Unreachable, match=rf"broker 1: no answer within {LIMIT_S} s"):
        wire.link.receive_codes()


def test_nor_is_a_connection_that_has_ended(wire: Wire) -> None:
    wire.link.request_log_ends([ONE])
    wire.broker.shutdown(socket.SHUT_WR)
    with pytest.raises(Unreachable, match="broker 1: the broker closed the connection"):
        wire.link.receive_log_ends()


def test_a_part_of_a_tls_record_is_waited_for_by_nobody(tmp_path: Path) -> None:
    authority, certificate, key = Authority("test"), tmp_path / "certificate", tmp_path / "key"
    authority.write(tmp_path / "ca")
    authority.issue(named("broker"), certificate, key, "127.0.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    spoken = server.wrap_bio(incoming, outgoing, server_side=True)
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def shake_hands() -> None:
            while True:
                try:
                    spoken.do_handshake()
                    theirs.sendall(outgoing.read())
                    return
                except ssl.SSLWantReadError:
                    theirs.sendall(outgoing.read())
                    incoming.write(theirs.recv(1 << 16))

        shaking = threading.Thread(target=shake_hands)
        shaking.start()
        client = ssl.create_default_context(cafile=str(tmp_path / "ca"))
        with client.wrap_socket(ours, server_hostname="127.0.0.1") as tls:
            shaking.join()
            tls.settimeout(LIMIT_S)
            connection = SimpleNamespace(sock=tls, where="broker 1", timeout_s=LIMIT_S)
            arriving = FrameBuffer(cast("Connection", connection))
            spoken.write(b"\0\0\0\5hello")
            record = outgoing.read()
            for byte in record:
                assert arriving.receive_frame() is None
                theirs.sendall(bytes([byte]))
            assert bytes(arriving.receive_frame() or b"") == b"hello"
            assert tls.gettimeout() == LIMIT_S


def test_an_owner_learns_the_way_to_a_slow_broker_though_its_task_is_busy(
    wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers after 0.7 s; the loop glances every 0.15 s."""
    answer_at = 0.0

    def pass_by(seconds: float) -> None:
        nonlocal answer_at
        clock.now += seconds
        if answer_at and clock.now >= answer_at:
            answer_at = 0.0
            wire.broker.sendall(wire.answer)

    monkeypatch.setattr(marker_link, "wait_readable", lambda _, limit_s: pass_by(limit_s))
    for _ in range(3):
        asked = clock.now
        wire.link.request_log_ends([ONE])
        answer_at = asked + 0.7
        while wire.link.receive_log_ends() is None:
            pass_by(0.15)
        if not wire.link.is_stale(clock.now - asked):
            return
    pytest.fail("after three looks nothing may be acted upon")


def test_a_pause_while_a_question_is_sent_is_no_way(wire: Wire, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes have left, the machine stands still for 3 s, and the answer has lain here."""
    send = wire.link.connection.send

    def slept(parts: list[bytes]) -> None:
        send(parts)
        wire.broker.sendall(wire.answer)
        clock.now += 3.0

    monkeypatch.setattr(wire.link.connection, "send", slept)
    wire.link.request_log_ends([ONE])
    assert wire.link.receive_log_ends() == ENDS_AT_7
    assert wire.link.is_stale(3.0), "it has lain here for 3 s"

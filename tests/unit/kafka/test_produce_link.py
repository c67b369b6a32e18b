"""How much may be on its way to a broker before an answer is waited for."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

import pytest

from mirror_core.kafka.connection import Connection
from mirror_core.kafka.produce_link import MIN_WINDOW_BYTES, ProduceBatch, ProduceLink
from mirror_core.kafka.sockets import Buffer
from mirror_core.wire.produce import ProducedPartition


class Swallowed(Connection):
    """A connection whose broker takes everything and says nothing."""

    def __init__(self) -> None:
        self.round_trip_s = 0.0
        self.sent = 0
        self.parts: Sequence[Buffer] = ()

    def next_id(self) -> int:
        return self.sent

    def push(self, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
        self.sent, self.parts = self.sent + 1, parts
        return memoryview(b"")


def sent_until_full(batch: bytes, rows: int) -> int:
    """Requests, of so many rows each."""
    connection = Swallowed()
    link = ProduceLink[None](connection)
    while not link.is_full:
        link.send([ProduceBatch("topic", index, memoryview(batch), None) for index in range(rows)])
    return connection.sent


def test_bytes_without_an_answer_are_bounded_not_requests() -> None:
    assert sent_until_full(bytes(1 << 16), 8) == MIN_WINDOW_BYTES // (8 << 16)
    assert sent_until_full(bytes(1 << 10), 1) > 1000


def test_no_more_answers_are_due_than_buffers_hold() -> None:
    """A broker that cannot get rid of its answers reads no more requests: then both would wait for each other."""
    for rows in (1, 8, 1000):
        assert sent_until_full(bytes(100), rows) * rows * 30 < (64 << 10) + 1000 * 30


def test_a_request_that_is_too_long_by_itself_goes_alone() -> None:
    assert sent_until_full(bytes(MIN_WINDOW_BYTES + 1), 1) == 1


class Answering(Swallowed):
    """Each request is answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.timeout_s = "broker", 1.0
        self.sock, self.broker = socket.socketpair()

    def answer(self, correlation: int, throttle_ms: int = 0) -> None:
        self.broker.sendall(struct.pack(">iiii", 12, correlation, 0, throttle_ms))

    def close(self) -> None:
        self.sock.close()
        self.broker.close()


def test_a_broker_that_answers_one_request_after_the_other_does_not_keep_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a thin link each request waits behind those before it, however quick the broker is."""
    now = 1000.0
    monkeypatch.setattr("mirror_core.kafka.produce_link.time.monotonic", lambda: now)
    connection = Answering()
    link = ProduceLink[None](connection)
    for _ in range(3):
        link.send([])
    now += 10
    connection.answer(0)
    assert list(link.read_responses()) == []
    now += 10
    assert (len(link.in_flight), link.overdue_s) == (2, 10.0), "since the last answer, not since it was sent"
    connection.answer(1)
    assert list(link.read_responses()) == []
    now += 20
    assert link.overdue_s == 20.0
    connection.answer(2)
    assert list(link.read_responses()) == []
    now += 20
    link.send([])
    now += 1
    assert link.overdue_s == 1.0, "nothing was due before"
    connection.close()


def test_a_broker_that_a_quota_keeps_from_reading_does_not_keep_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-219: it answers at once, and then reads nothing more from this connection for as long as it has said."""
    now = 1000.0
    monkeypatch.setattr("mirror_core.kafka.produce_link.time.monotonic", lambda: now)
    connection = Answering()
    link = ProduceLink[None](connection)
    link.send([])
    link.send([])
    connection.answer(0, 20_000)
    assert list(link.read_responses()) == []
    assert (link.throttled_for_s, link.overdue_s) == (20.0, -20.0)
    now += 25
    assert (link.throttled_for_s, link.overdue_s) == (0.0, 5.0)
    connection.answer(1)
    assert list(link.read_responses()) == []
    assert (link.throttled_for_s, link.overdue_s) == (0.0, 0.0)
    connection.close()


@pytest.mark.parametrize(("newest", "topic_id", "version"), [(13, b"i" * 16, 13), (12, b"i" * 16, 8), (13, b"", 8)])
def test_a_topic_is_produced_to_by_its_id_where_there_is_one(newest: int, topic_id: bytes, version: int) -> None:
    connection = Answering()
    connection.newest_versions = {0: newest}
    link = ProduceLink[str](connection)
    other = ProduceBatch("other", 0, memoryview(b"batch"), "other", b"o" * 16)
    link.send([other, ProduceBatch("topic", 3, memoryview(b"batch"), "tag", topic_id)])
    assert int.from_bytes(bytes(connection.parts[1])[2:4], "big") == version
    connection.close()


def test_a_response_by_id_is_read_with_the_throttle_time_before_its_tags() -> None:
    connection = Answering()
    connection.newest_versions = {0: 13}
    link = ProduceLink[str](connection)
    link.send([ProduceBatch("topic", 3, memoryview(b"batch"), "tag", b"i" * 16)])
    row = struct.pack(">ihqqq", 3, 0, 70, -1, 0) + b"\1\0\0"
    tags = b"\1\0\2ab"
    body = tags + b"\2" + b"i" * 16 + b"\2" + row + b"\0" + struct.pack(">i", 2_000) + tags
    connection.broker.sendall(struct.pack(">ii", 4 + len(body), 0) + body)
    assert list(link.read_responses()) == [("tag", ProducedPartition("topic", 3, 0, 70, ""))]
    assert (link.throttle_s, len(link.in_flight)) == (2.0, 0)
    connection.close()

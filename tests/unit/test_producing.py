"""How much may be on its way to a broker before an answer is waited for."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_core.kafka.connection import Buffer, Connection
from mirror_core.kafka.producing import ProduceLink, Row
from mirror_core.kafka.window import LEAST_WINDOW


class Swallowed(Connection):
    """A connection whose broker takes everything and says nothing."""

    def __init__(self) -> None:
        self.round_trip_s = 0.0
        self.sent = 0

    def next_id(self) -> int:
        return self.sent

    def send(self, parts: Sequence[Buffer]) -> None:
        self.sent += 1


def sent_until_full(batch: bytes, rows: int) -> int:
    """Requests, of so many rows each."""
    connection = Swallowed()
    link = ProduceLink[None](connection)
    while not link.full:
        link.send([Row("topic", index, memoryview(batch), None) for index in range(rows)])
    return connection.sent


def test_bytes_without_an_answer_are_bounded_not_requests() -> None:
    assert sent_until_full(bytes(1 << 16), 8) == LEAST_WINDOW // (8 << 16)
    assert sent_until_full(bytes(1 << 10), 1) > 1000


def test_no_more_answers_are_due_than_buffers_hold() -> None:
    """A broker that cannot get rid of its answers reads no more requests: then both would wait for each other."""
    for rows in (1, 8, 1000):
        assert sent_until_full(bytes(100), rows) * rows * 30 < (64 << 10) + 1000 * 30


def test_a_request_that_is_too_long_by_itself_goes_alone() -> None:
    assert sent_until_full(bytes(LEAST_WINDOW + 1), 1) == 1

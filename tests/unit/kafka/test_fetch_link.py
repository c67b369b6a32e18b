"""Fetches by topic id where the broker has them, and by name elsewhere."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fetch_link import FetchLink
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirror_core.wire import fetch
from tests.support.fake_metadata import frame
from tests.support.fetch_responses import Rows, fetch_answer, fetch_answer_by_id

PARTITION = Partition("orders", 0)
ID = bytes(range(16))
POSITION = fetch.FetchPosition(PARTITION, 5, 7, ID)
ROW: Rows = {PARTITION: (90, 80, [(1, 6)], b"batch")}


class Wire(Connection):
    """To a broker whose responses are the test's."""

    def __init__(self) -> None:
        self.where = "cluster east, broker"
        self.sock, self.far_end = socket.socketpair()
        self._tls_hint = ""
        self._ids = itertools.count(1)
        self.set_timeout(5.0)
        self.newest_versions = {fetch.API_KEY: 17}

    def respond(self, body: bytes, *, is_flexible: bool = False) -> None:
        """With a tagged field that nobody knows yet where there are some."""
        header = self.request[4:8] + (b"\1\x63\2ab" if is_flexible else b"")
        self.far_end.sendall((len(header) + len(body)).to_bytes(4, "big") + header + body)

    def take_version(self) -> int:
        self.request = frame(self.far_end)
        return int.from_bytes(self.request[2:4], "big")

    def close(self) -> None:
        self.sock.close()
        self.far_end.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with closing(Wire()) as made:
        yield made


@pytest.fixture
def link(wire: Wire) -> FetchLink:
    return FetchLink(wire, max_bytes=1 << 20, partition_max_bytes=1 << 20)


def send(link: FetchLink, *positions: fetch.FetchPosition) -> None:
    link.send_fetch(positions, max_wait_ms=0, isolation=fetch.IsolationLevel.READ_COMMITTED)


@pytest.mark.parametrize(
    ("newest", "position", "version"),
    [
        (13, POSITION, 13),
        (12, POSITION, 10),
        (17, POSITION._replace(topic_id=b""), 10),
        (17, POSITION._replace(leader_epoch=-1), 10),
    ],
)
def test_a_topic_is_fetched_by_its_id_where_there_is_one(
    wire: Wire, link: FetchLink, newest: int, position: fetch.FetchPosition, version: int
) -> None:
    wire.newest_versions = {fetch.API_KEY: newest}
    send(link, position)
    assert wire.take_version() == version


def test_a_connection_that_has_not_asked_for_versions_fetches_by_name(wire: Wire, link: FetchLink) -> None:
    del wire.newest_versions
    send(link, POSITION)
    assert wire.take_version() == 10


def test_a_response_by_id_is_read(wire: Wire, link: FetchLink) -> None:
    send(link, POSITION)
    wire.take_version()
    wire.respond(fetch_answer_by_id(ROW, {"orders": ID}, throttle_ms=300), is_flexible=True)
    [fetched] = link.read_response()
    assert (fetched.partition, bytes(fetched.records), fetched.aborted_transactions) == (PARTITION, b"batch", ((1, 6),))
    assert (link.throttle_ms, link.is_single_partition, link.pending) == (300, True, False)


@pytest.mark.parametrize("body", [b"", fetch_answer_by_id(ROW, {"orders": bytes(16)})])
def test_a_malformed_response_by_id_is_the_brokers_fault(wire: Wire, link: FetchLink, body: bytes) -> None:
    send(link, POSITION)
    wire.take_version()
    wire.respond(body, is_flexible=True)
    with pytest.raises(RemoteFault, match="makes no sense"):
        list(link.read_response())


def test_a_leader_that_sends_readers_elsewhere_is_fetched_from_by_name(wire: Wire, link: FetchLink) -> None:
    """Its response looks like an empty log: two of them would be a gap."""
    send(link, POSITION)
    assert wire.take_version() == 13
    wire.respond(fetch_answer_by_id({PARTITION: (90, 80, [], b"")}, {"orders": ID}, replica=99), is_flexible=True)
    assert list(link.read_response()) == []
    send(link, POSITION)
    assert wire.take_version() == 10
    wire.respond(fetch_answer(ROW))
    assert [bytes(fetched.records) for fetched in link.read_response()] == [b"batch"]

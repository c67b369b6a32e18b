"""A broker that is cut off from the controllers, and not from us: what it says of leaders is old."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from mirror_core.kafka import offsets
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import settle
from mirror_core.kafka.offsets import Point, led_offsets, list_offsets
from mirror_core.model.errors import BadRequest, Unreachable
from mirror_core.model.names import Partition
from tests.threads import beside
from tests.unit.test_many_requests import METADATA, ZERO, encoded, frame

P = Partition("orders", 0)
STALE, FRESH = 1, 2
LIMIT_S = 30.0
OFFSET = 42


def offset_answer(*, leads: bool) -> bytes:
    """To ListOffsets v5."""
    topic = P.topic.encode()
    error, offset = (ErrorCode.none, OFFSET) if leads else (ErrorCode.not_leader_or_follower, -1)
    row = struct.pack(">iihqqi", 1, P.index, error.value, -1, offset, 0)
    return struct.pack(">iih", 0, 1, len(topic)) + topic + row


class Brokers:
    """Two of them. One says that it leads, and knows better when it is asked for an offset; the other one does."""

    def __init__(self, stack: ExitStack) -> None:
        self.asked = list[int]()
        """Whom metadata was asked of."""
        self._listeners = {broker: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for broker in (1, 2)}
        self.ports = {broker: listener.getsockname()[1] for broker, listener in self._listeners.items()}
        for broker, listener in self._listeners.items():
            stop = partial(listener.shutdown, socket.SHUT_RDWR)
            stack.enter_context(beside(partial(self._serve, broker, listener, stack), stop))

    def _serve(self, broker: int, listener: socket.socket, stack: ExitStack) -> None:
        with suppress(OSError), ExitStack() as taken:
            while True:
                connection = taken.enter_context(listener.accept()[0])
                taken.enter_context(beside(partial(self._answer, broker, connection), lambda: None))

    def _answer(self, broker: int, connection: socket.socket) -> None:
        with suppress(OSError):
            while request := frame(connection):
                if int.from_bytes(request[:2], "big") == METADATA:
                    self.asked.append(broker)
                    said = b"\0" + encoded(MetadataResponse, self._view(leader=broker))
                else:
                    said = offset_answer(leads=broker == FRESH)
                said = request[4:8] + said
                connection.sendall(len(said).to_bytes(4, "big") + said)

    def _view(self, *, leader: int) -> MetadataResponse:
        known = tuple(
            MetadataResponseBroker(node_id=BrokerId(broker), host="127.0.0.1", port=i32(port), rack=None)
            for broker, port in self.ports.items()
        )
        row = MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=i32(0),
            leader_id=BrokerId(leader),
            leader_epoch=i32(leader),
            replica_nodes=(BrokerId(1), BrokerId(2)),
            isr_nodes=(BrokerId(leader),),
            offline_replicas=(),
        )
        topic = MetadataResponseTopic(
            error_code=ErrorCode.none, name=TopicName(P.topic), topic_id=None, is_internal=False, partitions=(row,)
        )
        return MetadataResponse(
            throttle_time=ZERO, brokers=known, cluster_id="c", controller_id=BrokerId(1), topics=(topic,)
        )


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with ExitStack() as stack:
        yield Brokers(stack)


@pytest.fixture
def client(brokers: Brokers, tmp_path: Path) -> Iterator[ClusterClient]:
    """Which has asked the stale one, and believes it."""
    path = tmp_path / "mirrorbook.yaml"
    servers = f'"127.0.0.1:{brokers.ports[STALE]}"'
    path.write_text(f"clusters: {{east: {{bootstrap.servers: {servers}}}}}", encoding="utf-8")
    with ClusterClient(load_config(path).cluster("east"), timeout_s=LIMIT_S) as made:
        assert led_by(made) == STALE
        yield made


def led_by(client: ClusterClient) -> int:
    [broker] = client.leaders([P])
    return broker


def test_another_one_is_asked_who_leads(client: ClusterClient, brokers: Brokers) -> None:
    assert led_by(client) == STALE
    client.ask_another()
    assert led_by(client) == FRESH
    assert led_by(client) == FRESH, "and stays asked"
    client.give_back(*client._connections.popitem())
    assert led_by(client) == FRESH, "whatever was asked of whom meanwhile"
    client.ask_another()
    assert led_by(client) == STALE, "in turn"
    assert brokers.asked == [STALE, STALE, FRESH, FRESH, FRESH, STALE]


def test_who_is_doubted_is_asked_all_the_same_where_no_other_is_there(client: ClusterClient, brokers: Brokers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        client._brokers = {STALE: client._brokers[STALE], FRESH: hangs.getsockname()[:2]}
        for _ in range(2):
            client.ask_another()
            assert led_by(client) == STALE
            client._brokers = {STALE: client._brokers[STALE], FRESH: hangs.getsockname()[:2]}


def test_who_is_there_is_asked_on_where_a_file_cannot_be_read_for_another_one(client: ClusterClient) -> None:
    def unreadable(address: tuple[str, int]) -> Connection:
        raise BadRequest("cluster east: ssl.ca.location: no such file")

    client.open = unreadable  # type: ignore[method-assign]
    client.ask_another()
    assert led_by(client) == STALE


def test_the_only_broker_is_asked_again(client: ClusterClient, brokers: Brokers) -> None:
    del brokers.ports[FRESH]
    assert led_by(client) == STALE
    for _ in range(3):
        client.ask_another()
        assert led_by(client) == STALE


def test_a_leader_that_says_it_is_none_makes_others_be_asked(client: ClusterClient) -> None:
    assert list_offsets(client, [P], Point.LOG_END) == {P: OFFSET}


def test_so_it_does_where_only_what_is_known_now_is_asked_for(client: ClusterClient) -> None:
    assert led_offsets(client, [P], Point.LOG_END).offsets == {}
    assert led_offsets(client, [P], Point.LOG_END).offsets == {P: OFFSET}, "the next time"


@pytest.mark.parametrize("code", [ErrorCode.none, ErrorCode.offset_not_available])
def test_where_nobody_leads_or_the_leader_does_not_know_yet_nobody_is_doubted(code: ErrorCode) -> None:
    leaders = {-1: [P]} if code is ErrorCode.none else {1: [P]}
    row = SimpleNamespace(partition_index=P.index, error_code=code, offset=-1)
    said = SimpleNamespace(topics=[SimpleNamespace(name=P.topic, partitions=[row])])
    doubts = list[bool]()
    client: Any = SimpleNamespace(
        name="east",
        timeout_s=0.1,
        leaders=lambda wanted: dict(leaders),
        call_each=lambda requests, answer, broker: [said for _ in requests],
        ask_another=lambda: doubts.append(True),
    )
    with pytest.raises(Unreachable, match="offsets not known"):
        list_offsets(client, [P], Point.LOG_END)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "ask_brokers", lambda client, asked: dict.fromkeys(asked, said))
        assert led_offsets(client, [P], Point.LOG_END, within_s=0.1).offsets == {}
    assert doubts == []


@pytest.mark.parametrize(
    ("code", "asked"), [(ErrorCode.not_leader_or_follower, True), (ErrorCode.request_timed_out, False)]
)
def test_so_it_does_in_whatever_is_settled(code: ErrorCode, asked: bool) -> None:
    said = [code, ErrorCode.none]
    doubts = list[bool]()
    client: Any = SimpleNamespace(name="east", timeout_s=LIMIT_S, ask_another=lambda: doubts.append(True))
    assert settle(client, "action", [P], lambda rest: {P: (said.pop(0), None)}) == {P: ErrorCode.none}
    assert doubts == [True] * asked

"""A broker that is cut off from the controllers, and not from us: what it says of leaders is old."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
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

from mirror_core.kafka import log_offsets
from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.kafka.client import ClusterClient, Leader
from mirror_core.kafka.config import load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import retry_per_key
from mirror_core.kafka.log_offsets import (
    OffsetPoint,
    OffsetsResult,
    find_offline_partitions,
    list_available_offsets,
    list_offsets,
    list_offsets_confirmed,
)
from mirror_core.model.errors import BadRequest, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.runbook import snapshot_reader
from mirror_core.runbook.snapshot_reader import ObservedGroups
from mirror_core.state.state_records import State
from tests.support.checked_threads import beside
from tests.support.cluster_names import LINK
from tests.support.request_frames import METADATA, ZERO, encoded, frame

P = Partition("orders", 0)
NOBODY, STALE, FRESH = -1, 1, 2
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
        """Whom it was asked of."""
        self.says = {broker: Leader(broker, epoch=broker) for broker in (STALE, FRESH)}
        """Who leads, by each of them."""
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
                    if P.topic.encode() in request:
                        self.asked.append(broker)
                    said = b"\0" + encoded(MetadataResponse, self._view(self.says[broker]))
                else:
                    said = offset_answer(leads=broker == FRESH)
                said = request[4:8] + said
                connection.sendall(len(said).to_bytes(4, "big") + said)

    def _view(self, leader: Leader) -> MetadataResponse:
        known = tuple(
            MetadataResponseBroker(node_id=BrokerId(broker), host="127.0.0.1", port=i32(port), rack=None)
            for broker, port in self.ports.items()
        )
        row = MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=i32(0),
            leader_id=BrokerId(leader.broker),
            leader_epoch=i32(leader.epoch),
            replica_nodes=(BrokerId(1), BrokerId(2)),
            isr_nodes=(BrokerId(leader.broker),),
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
    client.mark_metadata_stale()
    assert led_by(client) == FRESH
    assert led_by(client) == FRESH, "and stays asked"
    client.return_connection(*client._connections.popitem())
    assert led_by(client) == FRESH, "whatever was asked of whom meanwhile"
    client.mark_metadata_stale()
    assert led_by(client) == STALE, "in turn"
    assert brokers.asked == [STALE, STALE, FRESH, FRESH, FRESH, STALE]


def test_who_is_doubted_is_asked_all_the_same_where_no_other_is_there(client: ClusterClient, brokers: Brokers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        client._brokers = {STALE: client._brokers[STALE], FRESH: hangs.getsockname()[:2]}
        for _ in range(2):
            client.mark_metadata_stale()
            assert led_by(client) == STALE
            client._brokers = {STALE: client._brokers[STALE], FRESH: hangs.getsockname()[:2]}


def test_who_is_there_is_asked_on_where_a_file_cannot_be_read_for_another_one(client: ClusterClient) -> None:
    def unreadable(address: tuple[str, int]) -> Connection:
        raise BadRequest("cluster east: ssl.ca.location: no such file")

    client.open = unreadable  # type: ignore[method-assign]
    client.mark_metadata_stale()
    assert led_by(client) == STALE


def test_the_only_broker_is_asked_again(client: ClusterClient, brokers: Brokers) -> None:
    del brokers.ports[FRESH]
    assert led_by(client) == STALE
    for _ in range(3):
        client.mark_metadata_stale()
        assert led_by(client) == STALE


def test_a_leader_that_says_it_is_none_makes_others_be_asked(client: ClusterClient) -> None:
    assert list_offsets(client, [P], OffsetPoint.LOG_END) == {P: OFFSET}


def test_so_it_does_where_only_what_is_known_now_is_asked_for(client: ClusterClient) -> None:
    assert list_available_offsets(client, [P], OffsetPoint.LOG_END).offsets == {}
    assert list_available_offsets(client, [P], OffsetPoint.LOG_END).offsets == {P: OFFSET}, "the next time"


@pytest.mark.parametrize(("leader", "doubted"), [(NOBODY, True), (1, False)])
def test_who_names_no_leader_is_doubted_and_not_for_one_that_does_not_know_yet(leader: int, doubted: bool) -> None:
    row = SimpleNamespace(
        partition_index=P.index, error_code=ErrorCode.offset_not_available, offset=-1, leader_epoch=-1
    )
    said = SimpleNamespace(topics=[SimpleNamespace(name=P.topic, partitions=[row])])
    doubts = list[bool]()
    client: Any = SimpleNamespace(
        name="east",
        timeout_s=0.1,
        leaders=lambda wanted: {leader: [P]},
        call_each=lambda requests, answer, broker: [said for _ in requests],
        mark_metadata_stale=lambda: doubts.append(True),
    )
    with pytest.raises(Unreachable, match="offsets not known"):
        list_offsets(client, [P], OffsetPoint.LOG_END)
    assert any(doubts) is doubted
    doubts.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_offsets, "call_brokers", lambda client, asked: dict.fromkeys(asked, said))
        assert list_available_offsets(client, [P], OffsetPoint.LOG_END, within_s=0.1).offsets == {}
    assert doubts == [], "`offsets_by_two` asks another one, where it matters"


def test_offsets_that_must_be_known_are_asked_for_by_another_brokers_word(
    client: ClusterClient, brokers: Brokers
) -> None:
    brokers.says[STALE] = Leader(NOBODY, epoch=0)
    assert list_offsets(client, [P], OffsetPoint.LOG_END) == {P: OFFSET}
    assert brokers.asked[-2:] == [STALE, FRESH]


@pytest.mark.parametrize(
    ("code", "asked"), [(ErrorCode.not_leader_or_follower, True), (ErrorCode.request_timed_out, False)]
)
def test_so_it_does_in_whatever_is_settled(code: ErrorCode, asked: bool) -> None:
    said = [code, ErrorCode.none]
    doubts = list[bool]()
    client: Any = SimpleNamespace(name="east", timeout_s=LIMIT_S, mark_metadata_stale=lambda: doubts.append(True))
    assert retry_per_key(client, "action", [P], lambda rest: {P: (said.pop(0), None)}) == {P: ErrorCode.none}
    assert doubts == [True] * asked


@pytest.mark.parametrize(
    ("stale", "fresh", "led"),
    [
        (Leader(NOBODY, epoch=4), Leader(FRESH, epoch=5), True),
        (Leader(FRESH, epoch=4), Leader(NOBODY, epoch=5), False),  # it has died since
        (Leader(NOBODY, epoch=5), Leader(NOBODY, epoch=5), False),
        (Leader(NOBODY, epoch=5), Leader(FRESH, epoch=5), True),  # one of both does not see the leader's address
    ],
)
def test_whether_nobody_leads_is_asked_of_two_and_the_newer_word_counts(
    client: ClusterClient, brokers: Brokers, stale: Leader, fresh: Leader, led: bool
) -> None:
    brokers.says = {STALE: stale, FRESH: fresh}
    assert find_offline_partitions(client, [P]) == (frozenset() if led else {P})
    assert brokers.asked[-2:] == [STALE, FRESH]


def test_a_plan_does_not_believe_one_broker_that_nobody_leads(client: ClusterClient, brokers: Brokers) -> None:
    brokers.says[STALE] = Leader(NOBODY, epoch=0)
    found = list_offsets_confirmed(client, [P], OffsetPoint.STABLE_END, within_s=0)
    assert (found.offsets, found.offline) == ({P: OFFSET}, frozenset())


def test_what_is_known_of_the_others_stays_known_where_nobody_answers_the_second_question(
    client: ClusterClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Partition(P.topic, 1)

    def silent(client: ClusterClient, partitions: Collection[Partition]) -> frozenset[Partition]:
        raise Unreachable("gone")

    first = OffsetsResult({P: Offset(OFFSET)}, frozenset({other}))
    monkeypatch.setattr("mirror_core.kafka.log_offsets.list_available_offsets", lambda *a, **k: first)
    monkeypatch.setattr("mirror_core.kafka.log_offsets.find_offline_partitions", silent)
    found = list_offsets_confirmed(client, [P, other], OffsetPoint.STABLE_END, within_s=0)
    assert (found.offsets, found.offline) == ({P: OFFSET}, frozenset({other}))


def test_nor_is_it_forgotten_where_the_source_dies_before_the_third(monkeypatch: pytest.MonkeyPatch) -> None:
    other, said = Partition(P.topic, 1), iter([OffsetsResult({P: Offset(OFFSET)}, frozenset({Partition(P.topic, 1)}))])

    def asked(*_: object, **how: object) -> OffsetsResult:
        for found in said:
            return found
        raise Unreachable("gone")

    monkeypatch.setattr("mirror_core.kafka.log_offsets.list_available_offsets", asked)
    monkeypatch.setattr("mirror_core.kafka.log_offsets.find_offline_partitions", lambda *_: frozenset())
    nobody: Any = None
    found = list_offsets_confirmed(nobody, [P, other], OffsetPoint.STABLE_END, within_s=0)
    assert (found.offsets, found.offline) == ({P: OFFSET}, frozenset({other}))


def test_nor_does_a_look_at_the_source(
    client: ClusterClient, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.says[STALE] = Leader(NOBODY, epoch=0)
    monkeypatch.setattr(snapshot_reader, "ClusterClient", lambda *a, **k: nullcontext(client))
    monkeypatch.setattr(snapshot_reader, "describe_acls", lambda client: AuthorizerOff("east"))
    monkeypatch.setattr(snapshot_reader, "list_open_transactions", lambda client, topics: ())
    monkeypatch.setattr(snapshot_reader, "observe_groups", lambda *a, **k: ObservedGroups())
    read: Any = SimpleNamespace(await_event=lambda *a: None)
    link = replace(LINK, mirror=replace(LINK.mirror, topics=(P.topic,)))
    seen = snapshot_reader._snapshot_source(link, State(), (P,), threading.Event(), read, offsets=False, fences=False)
    assert (seen.stable_ends, seen.offline_partitions) == ({P: OFFSET}, ())


def test_what_nobody_leads_is_told_apart_from_a_leader_that_does_not_answer(
    client: ClusterClient, brokers: Brokers
) -> None:
    gone = Leader(NOBODY, epoch=5)
    brokers.says = {STALE: gone, FRESH: gone}
    assert list_offsets_confirmed(client, [P], OffsetPoint.STABLE_END, within_s=0).offline == {P}
    brokers.says[FRESH] = Leader(STALE, epoch=6)  # who does not know it yet
    found = list_offsets_confirmed(client, [P], OffsetPoint.STABLE_END, within_s=0)
    assert (found.offsets, found.offline) == ({}, frozenset())


def test_a_cluster_of_one_broker_is_believed(client: ClusterClient, brokers: Brokers) -> None:
    del brokers.ports[FRESH]
    brokers.says[STALE] = Leader(NOBODY, epoch=5)
    client.brokers()
    assert find_offline_partitions(client, [P]) == {P}

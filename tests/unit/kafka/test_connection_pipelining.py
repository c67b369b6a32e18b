"""Many requests on one connection: they travel behind each other, and none that was answered is sent again."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.metadata.v12.response import MetadataResponse, MetadataResponseBroker
from kio.schema.types import BrokerId
from kio.serial import entity_reader
from kio.static.primitive import i8, i32

from mirror_core.kafka import connection as connections
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import retry_per_key
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.sync import mirror_topics
from tests.support.checked_threads import beside
from tests.support.request_frames import METADATA, ZERO, encoded, frame

GROUPS = [f"g{number}" for number in range(8)]
ANSWERED = 3
"""Of the requests on its first connection the broker answers so many, before it closes it."""


@pytest.fixture
def mortal() -> Iterator[tuple[int, list[list[str]]]]:
    """A broker's port, and the groups that it was asked for on each of its connections."""
    asked = list[list[str]]()

    def answer(request: bytes, port: int) -> bytes:
        if int.from_bytes(request[:2], "big") == METADATA:
            broker = MetadataResponseBroker(node_id=BrokerId(1), host="127.0.0.1", port=i32(port), rack=None)
            view = MetadataResponse(
                throttle_time=ZERO, brokers=(broker,), cluster_id="c", controller_id=BrokerId(1), topics=()
            )
            return encoded(MetadataResponse, view)
        _, read = entity_reader(FindCoordinatorRequest.__header_schema__)(request, 0)
        wanted, _ = entity_reader(FindCoordinatorRequest)(request, read)
        (group,) = wanted.coordinator_keys
        asked[-1].append(group)
        row = Coordinator(
            key=group,
            node_id=BrokerId(1),
            host="127.0.0.1",
            port=i32(port),
            error_code=ErrorCode.none,
            error_message=None,
        )
        return encoded(FindCoordinatorResponse, FindCoordinatorResponse(throttle_time=ZERO, coordinators=(row,)))

    def serve(listener: socket.socket) -> None:
        port = listener.getsockname()[1]
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                asked.append([])
                with connection:
                    while request := frame(connection):
                        said = request[4:8] + b"\0" + answer(request, port)
                        if len(asked) > 1 or len(asked[0]) <= ANSWERED:
                            connection.sendall(len(said).to_bytes(4, "big") + said)
                        if len(asked) == 1 and len(asked[0]) == len(GROUPS):
                            break

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        beside(partial(serve, listener), partial(listener.shutdown, socket.SHUT_RDWR)),
    ):
        yield listener.getsockname()[1], asked


def test_what_was_answered_before_a_connection_died_is_not_asked_again(
    mortal: tuple[int, list[list[str]]], tmp_path: Path
) -> None:
    port, asked = mortal
    path = tmp_path / "mirrorbook.yaml"
    path.write_text(f'clusters: {{east: {{bootstrap.servers: "127.0.0.1:{port}"}}}}', encoding="utf-8")
    requests = [FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(group,)) for group in GROUPS]
    with ClusterClient(load_config(path).cluster("east"), timeout_s=30.0) as client:
        client.metadata(())
        found = client.call_each(requests, FindCoordinatorResponse, 1)
    assert [row.key for answer in found for row in answer.coordinators] == GROUPS
    assert asked == [GROUPS, GROUPS[ANSWERED:]]


class OnPaper(Connection):
    """Notes how much is under way."""

    def __init__(self) -> None:
        self.response_pending = False
        self.under_way = list[int]()
        self.most = self.most_bytes = 0
        self._ids = itertools.count(1)

    def send(self, parts: Sequence[Any]) -> None:
        self.under_way.append(sum(len(part) for part in parts))
        self.most = max(self.most, len(self.under_way))
        if len(self.under_way) > 1:
            self.most_bytes = max(self.most_bytes, sum(self.under_way))

    def receive(self) -> bytearray:
        return bytearray(self.under_way.pop(0).to_bytes(8, "big"))


@given(st.lists(st.integers(1, 200_000), max_size=30))
def test_as_much_as_lines_hold_is_under_way(sizes: list[int]) -> None:
    paper = OnPaper()
    requests: Any = [b"x" * size for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "encode", lambda request, *_: request)
        got = list(paper._exchange(requests))
    assert [int.from_bytes(answer, "big") for _, answer in got] == sizes, "each once, in order"
    assert [due for due, _ in got] == list(range(1, len(sizes) + 1))
    assert paper.most_bytes <= connections._MAX_IN_FLIGHT_BYTES
    assert paper.most == len(sizes) or sum(sizes) > connections._MAX_IN_FLIGHT_BYTES
    assert not paper.response_pending


Changes = Mapping[str, Mapping[str, str | None]]


class Picky:
    """Brokers that refuse a topic's changes as a whole when one is `bad`."""

    def __init__(self) -> None:
        self.asked = list[Changes]()
        self.made = dict[str, dict[str, str | None]]()

    def alter(self, client: Any, changes: Changes, *, validate_only: bool) -> dict[str, RemoteFault]:
        self.asked.append(changes)
        assert not validate_only
        refused = {t: RemoteFault(f"not {t}") for t, mine in changes.items() if "bad" in mine.values()}
        for topic in changes.keys() - refused.keys():
            self.made.setdefault(topic, {}).update(changes[topic])
        return refused


def test_a_refused_setting_is_its_topics_alone_however_many_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, client = Picky(), SimpleNamespace()
    monkeypatch.setattr(mirror_topics, "try_alter_configs", brokers.alter)
    good: dict[str, str | None] = {"retention.ms": "1", "segment.ms": None}
    many: Changes = {f"t{n}": {**good, "flush.ms": "bad"} if n % 2 else good for n in range(80)}
    refused = mirror_topics.apply_config_changes(client, many)  # type: ignore[arg-type]
    words = {topic: {key: str(error) for key, error in mine.items()} for topic, mine in refused.items()}
    assert words == {f"t{n}": {"flush.ms": f"not t{n}"} for n in range(1, 80, 2)}
    assert brokers.made == {topic: good for topic in many}
    assert len(brokers.asked) == 1 + 3, "once for all, and once for each setting that a refused topic has"


def test_what_is_refused_is_told_apart_from_what_has_to_wait_and_from_a_missing_right() -> None:
    client: Any = SimpleNamespace(name="west", timeout_s=5.0, principal="control", config=SimpleNamespace(user=str))
    tries = list[list[str]]()
    words = {"bad": ErrorCode.invalid_config, "late": ErrorCode.not_controller}

    def attempt(wanted: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        tries.append(wanted)
        return {one: (words.get(one, ErrorCode.none) if len(tries) == 1 else ErrorCode.none, None) for one in wanted}

    refusals = dict[str, RemoteFault]()
    assert retry_per_key(client, "action", ["bad", "good", "late"], attempt, refusals=refusals).keys() == {
        "good",
        "late",
    }
    assert refusals.keys() == {"bad"}
    assert tries[1:] == [["late"]]
    words, tries = {"denied": ErrorCode.topic_authorization_failed}, []
    assert retry_per_key(client, "action", ["denied", "good"], attempt, refusals=refusals).keys() == {"good"}
    assert isinstance(refusals["denied"], MissingPermission), "one topic's alone"
    tries = []
    with pytest.raises(MissingPermission):
        retry_per_key(client, "action", ["denied", "good"], attempt)

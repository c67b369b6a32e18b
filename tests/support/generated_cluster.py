"""A cluster that consists of answers: many brokers, topics and partitions, generated, and no log behind them.

    python -m tests.support.generated_cluster SIDE TOPICS PARTITIONS BROKERS

prints its ports as JSON, one a broker, and answers what plans of a data plane and of a failover ask until its standard
input ends. SIDE is `a` (a source that goes on) or `b` (a destination that is behind it). It has no authorizer, no group
and no transaction. The wire is real, so what a client takes to write and read it is, too.
"""

from __future__ import annotations

import datetime
import io
import json
import selectors
import socket
import struct
import sys
import uuid
from functools import cache
from typing import Any, Final

from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.delete_records.v1.request import DeleteRecordsRequest
from kio.schema.describe_acls.v1.response import DescribeAclsResponse
from kio.schema.describe_groups.v4.request import DescribeGroupsRequest
from kio.schema.describe_groups.v4.response import DescribedGroup, DescribeGroupsResponse
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.list_offsets.v5.request import ListOffsetsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.metadata.v8.request import MetadataRequest as RightsRequest
from kio.schema.metadata.v8.response import MetadataResponse as RightsResponse
from kio.schema.metadata.v8.response import MetadataResponseTopic as RightsTopic
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

START: Final = 400_000
MOVED: Final = 500_000
"""Where the logs of every fifth topic begin on the source: retention has moved them, and each plan is to follow."""
END: Final = {"a": 2_000_000, "b": 1_000_000}
EPOCH: Final = 7
NAMED: Final = "department.of.orders.stream-"
_REPLICAS: Final = 3
_LISTED: Final = -2
"""The timestamp that asks for a log's start."""
_ZERO: Final = i32Timedelta.parse(datetime.timedelta())


def topic(number: int) -> str:
    return f"{NAMED}{number:05}"


def topic_id(number: int, side: str) -> str:
    return f"{side}{number:031x}"


class Cluster:
    """All brokers say the same: who is asked what is the client's matter, and is counted by nobody."""

    def __init__(self, side: str, topics: int, partitions: int, brokers: int) -> None:
        self.side, self.topics, self.partitions, self.brokers = side, topics, partitions, brokers
        self.listeners = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(brokers)]
        self.ports = [listener.getsockname()[1] for listener in self.listeners]

    def serve(self) -> None:
        """Until the standard input ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            for listener in self.listeners:
                selector.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is sys.stdin:
                        return
                    ready: Any = key.fileobj
                    if ready in self.listeners:
                        selector.register(ready.accept()[0], selectors.EVENT_READ)
                    elif request := _frame(ready):
                        said = request[4:8] + self.answer(request)
                        ready.sendall(len(said).to_bytes(4, "big") + said)
                    else:
                        selector.unregister(ready)
                        ready.close()

    def answer(self, request: bytes) -> bytes:
        key, version = struct.unpack_from(">hh", request)
        if (key, version) in _QUIET:
            return _QUIET[key, version]
        kind = _ASKED.get((key, version))
        if kind is None:
            raise NotImplementedError(f"request {key} of version {version} has no answer")
        _, read = entity_reader(kind.__header_schema__)(request, 0)
        asked: Any = entity_reader(kind)(request, read)[0]
        if kind is MetadataRequest:
            names = None if asked.topics is None else tuple(str(t.name) for t in asked.topics)
            return self._metadata(names if names is None or len(names) < self.topics else None)
        if kind is RightsRequest:
            return self._rights([str(t.name) for t in asked.topics])
        if kind is FindCoordinatorRequest:
            return self._coordinators(asked.coordinator_keys)
        if kind is DescribeGroupsRequest:
            return _dead_groups(asked.groups)
        if kind is ListOffsetsRequest:
            return self._offsets(asked)
        return self._deleted(asked)

    def _rights(self, names: list[str]) -> bytes:
        return _told(
            RightsResponse(
                throttle_time=_ZERO,
                brokers=(),
                cluster_id=self.side,
                controller_id=BrokerId(0),
                topics=tuple(
                    RightsTopic(
                        error_code=ErrorCode.none if name.startswith(NAMED) else ErrorCode.unknown_topic_or_partition,
                        name=TopicName(name),
                        is_internal=False,
                        partitions=(),
                        topic_authorized_operations=_ALL_RIGHTS,
                    )
                    for name in names
                ),
                cluster_authorized_operations=_ALL_RIGHTS,
            )
        )

    def _coordinators(self, keys: tuple[str, ...]) -> bytes:
        return _told(
            FindCoordinatorResponse(
                throttle_time=_ZERO,
                coordinators=tuple(
                    Coordinator(
                        key=key,
                        node_id=BrokerId(0),
                        host="127.0.0.1",
                        port=i32(self.ports[0]),
                        error_code=ErrorCode.none,
                        error_message=None,
                    )
                    for key in keys
                ),
            ),
            b"\0",
        )

    @cache  # noqa: B019 - a process's only one
    def _metadata(self, names: tuple[str, ...] | None) -> bytes:
        ids = [BrokerId(number) for number in range(self.brokers)]
        chosen = range(self.topics) if names is None else [int(n[-5:]) for n in names if n.startswith(NAMED)]
        unknown = [name for name in names or () if not name.startswith(NAMED)]
        view = MetadataResponse(
            throttle_time=_ZERO,
            brokers=tuple(
                MetadataResponseBroker(node_id=broker, host="127.0.0.1", port=i32(port), rack=None)
                for broker, port in zip(ids, self.ports, strict=True)
            ),
            cluster_id=self.side,
            controller_id=ids[0],
            topics=(*(self._topic(number, ids) for number in chosen), *map(_unknown, unknown)),
        )
        return _told(view, b"\0")

    def _topic(self, number: int, ids: list[BrokerId]) -> MetadataResponseTopic:
        def partition(index: int) -> MetadataResponsePartition:
            first = number * self.partitions + index
            nodes = tuple(ids[(first + n) % len(ids)] for n in range(_REPLICAS))
            return MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(index),
                leader_id=nodes[0],
                leader_epoch=i32(EPOCH),
                replica_nodes=nodes,
                isr_nodes=nodes,
                offline_replicas=(),
            )

        return MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=TopicName(topic(number)),
            topic_id=uuid.UUID(topic_id(number, self.side)),
            is_internal=False,
            partitions=tuple(partition(index) for index in range(self.partitions)),
        )

    def _offsets(self, asked: Any) -> bytes:
        parts = [struct.pack(">ii", 0, len(asked.topics))]
        for one in asked.topics:
            parts.append(_named(str(one.name), len(one.partitions)))
            start = MOVED if self.side == "a" and int(str(one.name)[-5:]) % 5 == 0 else START
            for row in one.partitions:
                offset = start if int(row.timestamp) == _LISTED else END[self.side]
                parts.append(struct.pack(">ihqqi", int(row.partition_index), 0, -1, offset, EPOCH))
        return b"".join(parts)

    def _deleted(self, asked: Any) -> bytes:
        parts = [struct.pack(">ii", 0, len(asked.topics))]
        for one in asked.topics:
            parts.append(_named(str(one.name), len(one.partitions)))
            parts += [struct.pack(">iqh", int(row.partition_index), int(row.offset), 0) for row in one.partitions]
        return b"".join(parts)


_ALL_RIGHTS: Final = i32(0b1_1111_1111_1000)
"""A cluster without an authorizer says so of whoever asks."""
_REQUESTS: Final = (
    MetadataRequest,
    RightsRequest,
    ListOffsetsRequest,
    DeleteRecordsRequest,
    FindCoordinatorRequest,
    DescribeGroupsRequest,
)


def _unknown(name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.unknown_topic_or_partition,
        name=TopicName(name),
        topic_id=None,
        is_internal=False,
        partitions=(),
    )


def _dead_groups(groups: tuple[GroupId, ...]) -> bytes:
    return _told(
        DescribeGroupsResponse(
            throttle_time=_ZERO,
            groups=tuple(
                DescribedGroup(
                    error_code=ErrorCode.none,
                    group_id=group,
                    group_state="Dead",
                    protocol_type="",
                    protocol_data="",
                    members=(),
                    authorized_operations=_ALL_RIGHTS,
                )
                for group in groups
            ),
        )
    )


def _told(body: Any, before: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(body))(buffer, body)
    return before + buffer.getvalue()


def _answers(kind: Any) -> tuple[int, int]:
    """To which request, of which version."""
    return int(kind.__api_key__), int(kind.__version__)


_ASKED: Final[dict[tuple[int, int], Any]] = {_answers(kind): kind for kind in _REQUESTS}


_QUIET: Final[dict[tuple[int, int], bytes]] = {
    _answers(type(body)): _told(body, b"\0" * flexible)
    for body, flexible in (
        (
            DescribeAclsResponse(
                throttle_time=_ZERO, error_code=ErrorCode.security_disabled, error_message=None, resources=()
            ),
            0,
        ),
        (
            DescribeUserScramCredentialsResponse(
                throttle_time=_ZERO, error_code=ErrorCode.none, error_message=None, results=()
            ),
            1,
        ),
        (ListGroupsResponse(throttle_time=_ZERO, error_code=ErrorCode.none, groups=()), 1),
        (
            ListTransactionsResponse(
                throttle_time=_ZERO, error_code=ErrorCode.none, unknown_state_filters=(), transaction_states=()
            ),
            1,
        ),
    )
}
"""What is the same whatever is asked, as answered without a correlation id."""


def _versions() -> bytes:
    every = {*_QUIET, *map(_answers, (*_ASKED.values(), ApiVersionsResponse))}
    rows = tuple(ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(v)) for key, v in sorted(every))
    return _told(ApiVersionsResponse(error_code=ErrorCode.none, api_keys=rows))


_QUIET[_answers(ApiVersionsResponse)] = _versions()


def _named(name: str, rows: int) -> bytes:
    return struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", rows)


def _frame(connection: socket.socket) -> bytes:
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL) if size else b""


if __name__ == "__main__":
    cluster = Cluster(sys.argv[1], *map(int, sys.argv[2:5]))
    print(json.dumps(cluster.ports), flush=True)
    cluster.serve()

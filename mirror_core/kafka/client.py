"""A cluster through control requests, each sent once more when its connection breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName

from mirror_core.kafka.broker_health import StaleMetadata
from mirror_core.kafka.codec import Request, Response
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.connection_pool import CONNECTION_POOL, ParallelConnect, no_broker_answered
from mirror_core.model.errors import BadRequest, RemoteFault, Unreachable
from mirror_core.model.names import Partition

_FORWARDED_TIMEOUT_S: Final = 45.0
"""A broker that forwards to a hanging controller tries the next after controller.socket.timeout.ms, 30 s; measured:
30.1 s, once per broker.
"""
_POOLED_TIMEOUT_S: Final = 0.5
_POOLED_ROUND_TRIPS: Final = 4
"""With `_POOLED_TIMEOUT_S`, a pooled connection's timeout before all brokers are tried."""
_SIGN_IN_ROUND_TRIPS: Final = 5
_BROKERS_ONLY_REQUEST: Final = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
CallResult = TypeVar("CallResult")


class Leader(NamedTuple):
    """Broker -1: the partition is offline."""

    broker: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """`id`: 32 hexadecimal digits (KIP-516), zeros without topic ids. `in_sync`: the partitions' smallest
    ISR."""

    name: str
    id: str
    internal: bool
    partitions: Mapping[int, Leader]
    replication_factor: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str
    controller: int
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicMetadata]
    denied: frozenset[str]
    """Not visible to this principal."""


def group_by_leader(partitions: Iterable[Partition], topics: Mapping[str, TopicMetadata]) -> dict[int, list[Partition]]:
    """Offline and unknown partitions are under -1."""
    by_broker: dict[int, list[Partition]] = {}
    for partition in partitions:
        topic = topics.get(partition.topic)
        leader = topic.partitions.get(partition.index) if topic else None
        by_broker.setdefault(leader.broker if leader else -1, []).append(partition)
    return by_broker


class ClusterClient:
    """One connection per broker, opened on demand, from the pool if it is on. Not thread-safe."""

    def __init__(
        self, config: ClusterConfig, principal: Principal = Principal.CONTROL, *, timeout_s: float = 10.0
    ) -> None:
        self.config = config
        self.principal = principal
        self.timeout_s = timeout_s
        self.name = config.name
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: Mapping[int, tuple[str, int]] = {}
        self._controller = -1
        self._stale_metadata = StaleMetadata()
        self.timed_out_at: dict[int, float] = {}  # by broker, monotonic: see `fan_out`
        self.fail_fast = False
        self.opened_connections = 0
        """More than before: one was lost, or several are needed."""

    def set_fail_fast(self, fail_fast: bool) -> None:
        """Give up a slow broker early where others can answer."""
        self.fail_fast = fail_fast

    def clone(self) -> ClusterClient:
        """For another thread; nothing is open yet."""
        return ClusterClient(self.config, self.principal, timeout_s=self.timeout_s)

    # -- sending -------------------------------------------------------------------------------------------------

    def call(self, request: Request, response_type: type[Response], broker: int | None = None) -> Response:
        """Reopens once a connection that died while idle."""
        return self._send_with_retry(broker, lambda connection: connection.call(request, response_type))

    def call_each(
        self, requests: Sequence[Request], response_type: type[Response], broker: int | None = None
    ) -> list[Response]:
        """Pipelined. Received responses are not requested again."""
        responses: list[Response] = []

        def send_rest(connection: Connection) -> None:
            responses.extend(connection.iter_responses(requests[len(responses) :], response_type))

        if requests:
            self._send_with_retry(broker, send_rest)
        return responses

    def _send_with_retry(self, broker: int | None, send: Callable[[Connection], CallResult]) -> CallResult:
        address = self.address(broker)
        was_idle = self._has_connection(address)
        try:
            return self._send_or_drop(address, send)
        except Unreachable:
            if not was_idle:
                raise
        return self._send_or_drop(self.address(broker), send)  # for any broker: another one if the first is gone

    def _send_or_drop(self, address: tuple[str, int], send: Callable[[Connection], CallResult]) -> CallResult:
        try:
            return send(self._connect(address))
        except BaseException:
            self._drop(address)
            raise

    def call_controller(self, request: Request, response_type: type[Response], broker: int | None = None) -> Response:
        """KRaft brokers forward; others must be the controller. Skips a hanging broker unless it is named. Waits longer
        than other calls: the broker may wait for a hanging controller.
        """
        return self.call_controller_each([request], response_type, broker)[0]

    def call_controller_each(
        self, requests: Sequence[Request], response_type: type[Response], broker: int | None = None
    ) -> list[Response]:
        """Pipelined, executed in order."""
        responses: list[Response] = []

        def send_rest(connection: Connection) -> None:
            connection.set_timeout(_FORWARDED_TIMEOUT_S)
            responses.extend(connection.iter_responses(requests[len(responses) :], response_type))
            connection.set_timeout(self.timeout_s)

        try:
            self._send_or_drop(self._find_responsive_broker(broker), send_rest)
        except Unreachable:
            self._send_or_drop(self._find_responsive_broker(broker), send_rest)
        return responses

    def _find_responsive_broker(self, broker: int | None) -> tuple[str, int]:
        if broker is None and self._controller < 0:
            self.metadata(())
        broker_id = self._controller if broker is None else broker
        try:
            self.call(_BROKERS_ONLY_REQUEST, MetadataResponse, broker_id)
            return self.address(broker_id)
        except Unreachable:  # a KRaft broker names any live-looking broker as controller
            if broker is not None:
                raise
        self.metadata(())
        return self.address(None)

    def brokers(self) -> tuple[int, ...]:
        self.metadata(())
        return tuple(sorted(self._brokers))

    # -- metadata ------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Topics that exist. None: all visible ones.

        Raises RemoteFault for another cluster than the pinned one.
        """
        named = (MetadataRequestTopic(topic_id=None, name=TopicName(t)) for t in topics or ())
        requested = None if topics is None else tuple(named)
        response = self._call_any(replace(_BROKERS_ONLY_REQUEST, topics=requested), MetadataResponse)
        self._check_pinned_id(response.cluster_id)
        self._brokers = {int(b.node_id): (b.host, int(b.port)) for b in response.brokers}
        self._controller = int(response.controller_id)
        described, denied = {}, set()
        for topic in response.topics:
            name = str(topic.name)
            if topic.error_code in (ErrorCode.none, ErrorCode.leader_not_available):
                described[name] = TopicMetadata(
                    name,
                    topic.topic_id.hex if topic.topic_id else "0" * 32,
                    topic.is_internal,
                    {int(p.partition_index): Leader(int(p.leader_id), int(p.leader_epoch)) for p in topic.partitions},
                    max((len(p.replica_nodes) for p in topic.partitions), default=0),
                    min((len(p.isr_nodes) for p in topic.partitions), default=0),
                )
            elif topic.error_code is ErrorCode.topic_authorization_failed:
                denied.add(name)
            elif topic.error_code is ErrorCode.invalid_topic_exception:
                raise BadRequest(f"cluster {self.name}: {name!r} is not a possible topic name")
            elif topic.error_code is not ErrorCode.unknown_topic_or_partition:
                raise RemoteFault(f"cluster {self.name}, topic {name}: metadata: {topic.error_code.name}")
        return ClusterMetadata(
            response.cluster_id or "", self._controller, dict(self._brokers), described, frozenset(denied)
        )

    def _check_pinned_id(self, found_id: str | None) -> None:
        if self.config.pinned_id not in (None, found_id):
            addresses = self.config.properties(self.principal)["bootstrap.servers"]
            raise RemoteFault(
                f"cluster {self.name}: {addresses} leads to cluster {found_id}, and {self.config.pinned_id} is meant:"
                " correct its address in mirrorbook.yaml where this ran"
            )

    def leaders(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        partition_list = list(partitions)
        return group_by_leader(partition_list, self.metadata({p.topic for p in partition_list}).topics)

    @property
    def round_trip_s(self) -> float:
        return max((connection.round_trip_s for connection in self._connections.values()), default=0.0)

    # -- connections ---------------------------------------------------------------------------------------------

    def mark_metadata_stale(self) -> None:
        """The next request to any broker prefers another than the one that told it."""
        self._stale_metadata.mark_stale()

    def _call_any(self, request: Request, response_type: type[Response]) -> Response:
        """Existing connections first, then all brokers in parallel: each dead one would cost a time limit."""
        addresses = list(dict.fromkeys([*self._brokers.values(), *self.config.bootstrap]))
        own_addresses = tuple(self._connections)
        if not own_addresses:
            next(filter(self._has_connection, addresses), None)
        self._connect_alternatives(addresses)
        for address, connection in self._stale_metadata.order_connections(self._connections):
            # With other brokers untried, a pooled connection gets less time.
            brief_s = min(self.timeout_s, _POOLED_TIMEOUT_S + _POOLED_ROUND_TRIPS * connection.round_trip_s)
            limit_s = brief_s if self.fail_fast or address not in own_addresses else self.timeout_s
            try:
                return self._record_metadata_source(address, connection.call(request, response_type, limit_s))
            except RemoteFault:
                self._drop(address)
        with closing(ParallelConnect(self.name, self.open, addresses)) as attempt:
            for connections in attempt.iter_connected(self.timeout_s):
                self._connections |= connections
                for address, connection in connections.items():
                    try:
                        return self._record_metadata_source(address, connection.call(request, response_type))
                    except RemoteFault as error:
                        self._drop(address)
                        attempt.problems.append(error)
            raise no_broker_answered(self.name, self.config.control["bootstrap.servers"], attempt.problems)

    def _record_metadata_source(self, address: tuple[str, int], response: Response) -> Response:
        self._stale_metadata.record_response(address)
        return response

    def _connect_alternatives(self, addresses: Sequence[tuple[str, int]]) -> None:
        if others := self._stale_metadata.choose_alternatives(addresses, self._connections, time.monotonic()):
            limit_s = _POOLED_TIMEOUT_S + _SIGN_IN_ROUND_TRIPS * self.round_trip_s
            # Optional: if a file is unreadable now, existing connections suffice.
            with suppress(BadRequest), closing(ParallelConnect(self.name, self.open, others)) as attempt:
                self._connections |= next(attempt.iter_connected(limit_s), {})

    def address(self, broker: int | None) -> tuple[str, int]:
        if broker is None:
            if not self._connections:
                self.metadata(())
            return next(iter(self._connections))
        if broker not in self._brokers:
            self.metadata(())
        try:
            return self._brokers[broker]
        except KeyError:
            raise Unreachable(f"cluster {self.name}: broker {broker} is not in the cluster now") from None

    def pool_key(self, address: tuple[str, int]) -> Hashable:
        """Identifies interchangeable connections in `CONNECTION_POOL`."""
        return address, tuple(sorted(self.config.properties(self.principal).items()))

    def _has_connection(self, address: tuple[str, int]) -> bool:
        if address not in self._connections and (connection := CONNECTION_POOL.acquire(self.pool_key(address))):
            connection.set_timeout(self.timeout_s)
            self._connections[address] = connection
        return address in self._connections

    def borrow_connection(self, address: tuple[str, int]) -> Connection | None:
        """For another thread, which returns it once its response was read completely."""
        if self._has_connection(address) and self._connections[address].is_readable:  # brokers close idle connections
            self._connections.pop(address).close()
        return self._connections.pop(address) if self._has_connection(address) else None

    def return_connection(self, address: tuple[str, int], connection: Connection) -> None:
        self._drop(address)
        self._connections[address] = connection

    def open(self, address: tuple[str, int]) -> Connection:
        """Thread-safe. The caller closes it."""
        self.opened_connections += 1
        return Connection(self.config, self.principal, *address, timeout_s=self.timeout_s)

    def _connect(self, address: tuple[str, int]) -> Connection:
        if address not in self._connections:
            self._connections[address] = self.open(address)
        return self._connections[address]

    def _drop(self, address: tuple[str, int]) -> None:
        if connection := self._connections.pop(address, None):
            connection.close()
            CONNECTION_POOL.discard(self.pool_key(address))

    def close(self) -> None:
        for address in list(self._connections):
            CONNECTION_POOL.release(self.pool_key(address), self._connections.pop(address))

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def borrowed_connection(client: ClusterClient, address: tuple[str, int]) -> Iterator[Connection]:
    """Closed on any error or interruption: responses could still arrive."""
    connection = client.borrow_connection(address) or client.open(address)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    client.return_connection(address, connection)

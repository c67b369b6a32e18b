"""A cluster as seen through control requests: who leads what, and any request to any broker.

Blocking and short-tempered: every wait has a limit, and a dead cluster is known within it. A request whose connection
breaks is sent once more, so only requests that do no harm when repeated belong here; records go through the copy task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import TopicName

from mirror_core.kafka.codec import Request, Response
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.doubts import Doubts
from mirror_core.kafka.kept import KEPT
from mirror_core.kafka.opening import Opening, nobody_answered
from mirror_core.model.errors import BadRequest, RemoteFault, Unreachable
from mirror_core.model.names import Partition

_FORWARDED_S: Final = 45.0
"""A broker that forwards a request to a controller that hangs asks its successor after `controller.socket.timeout.ms`,
30 s; measured: 30.1 s, once for each broker, and no time for a controller that was killed."""
_KEPT_S: Final = 0.5
_KEPT_TRIPS: Final = 4
"""Together how long a broker may take to a question for any, on a connection that was kept, before all are asked."""
_SIGN_IN_TRIPS: Final = 5
_NO_TOPICS: Final = MetadataRequest(
    topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
)
Answer = TypeVar("Answer")


class Leader(NamedTuple):
    """Who leads a partition. Broker -1: nobody does at present."""

    broker: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic as one broker described it. `id`: 32 hexadecimal digits (KIP-516), zeroes from clusters without ids;
    `in_sync`: replicas in sync, of the partition that has fewest."""

    name: str
    id: str
    internal: bool
    partitions: Mapping[int, Leader]
    replication_factor: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one Metadata answer said."""

    cluster_id: str
    controller: int
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicView]
    denied: frozenset[str]
    """Topics asked for by name that this principal may not describe."""


def by_leader(partitions: Iterable[Partition], topics: Mapping[str, TopicView]) -> dict[int, list[Partition]]:
    """Partitions by the broker that leads them; those without a leader, or unknown, under -1."""
    by_broker: dict[int, list[Partition]] = {}
    for partition in partitions:
        topic = topics.get(partition.topic)
        leader = topic.partitions.get(partition.index) if topic else None
        by_broker.setdefault(leader.broker if leader else -1, []).append(partition)
    return by_broker


class ClusterClient:
    """Connections are opened on demand, one a broker, and kept. Not for use by several threads at once.

    While a run is at work (`kept`), the next client goes on with them.
    """

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
        self._doubts = Doubts()
        self.silent: dict[int, float] = {}  # brokers that let a time limit pass, and when (monotonic): of `at_once`
        self.hurry = False

    def hurries(self, hurry: bool) -> None:
        """Whether a broker that may hang is left soon from now on, where others are, or can be, asked (`at_once`)."""
        self.hurry = hurry

    def alike(self) -> ClusterClient:
        """Another one, with nothing open yet, for another thread."""
        return ClusterClient(self.config, self.principal, timeout_s=self.timeout_s)

    # -- sending -------------------------------------------------------------------------------------------------

    def call(self, request: Request, answer: type[Response], broker: int | None = None) -> Response:
        """Send to one broker (any, when None). A connection that had died while idle is opened again once."""
        return self._once_more(broker, lambda connection: connection.call(request, answer))

    def call_each(
        self, requests: Sequence[Request], answer: type[Response], broker: int | None = None
    ) -> list[Response]:
        """The same for many requests of one kind: the next ones travel while the first one is answered.

        What was answered before a connection died is not asked again.
        """
        found: list[Response] = []

        def rest(connection: Connection) -> None:
            found.extend(connection.answers(requests[len(found) :], answer))

        if requests:
            self._once_more(broker, rest)
        return found

    def _once_more(self, broker: int | None, send: Callable[[Connection], Answer]) -> Answer:
        address = self.address(broker)
        idle = self._has(address)
        try:
            return self._sent(address, send)
        except Unreachable:
            if not idle:
                raise
        return self._sent(self.address(broker), send)  # of any: another one, where the first one has gone for good

    def _sent(self, address: tuple[str, int], send: Callable[[Connection], Answer]) -> Answer:
        """A connection of which an answer was not taken whole is not used again: the rest of it would be the next."""
        try:
            return send(self._connect(address))
        except BaseException:
            self._drop(address)
            raise

    def call_controller(self, request: Request, answer: type[Response], broker: int | None = None) -> Response:
        """Send to the active controller by way of this broker, or of any (KRaft brokers forward, others must be it).

        A broker that hangs is passed over, unless it is named. One that answers may itself wait for a controller that
        hangs, so this answer has more time than others.
        """
        return self.call_controller_each([request], answer, broker)[0]

    def call_controller_each(
        self, requests: Sequence[Request], answer: type[Response], broker: int | None = None
    ) -> list[Response]:
        """The same for many requests of one kind, which are carried out one after the other.

        What was answered before a connection died is not asked again.
        """
        found: list[Response] = []

        def rest(connection: Connection) -> None:
            connection.wait_for(_FORWARDED_S)
            found.extend(connection.answers(requests[len(found) :], answer))
            connection.wait_for(self.timeout_s)

        try:
            self._sent(self._awake(broker), rest)
        except Unreachable:
            self._sent(self._awake(broker), rest)
        return found

    def _awake(self, broker: int | None) -> tuple[str, int]:
        """Address of a broker that has answered just now: of this one, or the controller's, or any."""
        if broker is None and self._controller < 0:
            self.metadata(())
        wanted = self._controller if broker is None else broker
        try:
            self.call(_NO_TOPICS, MetadataResponse, wanted)
            return self.address(wanted)
        except Unreachable:  # a KRaft broker calls any one that it believes to be alive the controller
            if broker is not None:
                raise
        self.metadata(())
        return self.address(None)

    def brokers(self) -> tuple[int, ...]:
        """Ids of all brokers now in the cluster."""
        self.metadata(())
        return tuple(sorted(self._brokers))

    # -- metadata ------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Describe these topics; all that this principal may see, when None. Left out: those that do not exist."""
        named = (MetadataRequestTopic(topic_id=None, name=TopicName(t)) for t in topics or ())
        wanted = None if topics is None else tuple(named)
        answer = self._ask_any(replace(_NO_TOPICS, topics=wanted), MetadataResponse)
        self._brokers = {int(b.node_id): (b.host, int(b.port)) for b in answer.brokers}
        self._controller = int(answer.controller_id)
        found, denied = {}, set()
        for topic in answer.topics:
            name = str(topic.name)
            if topic.error_code in (ErrorCode.none, ErrorCode.leader_not_available):
                found[name] = TopicView(
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
        return ClusterView(answer.cluster_id or "", self._controller, dict(self._brokers), found, frozenset(denied))

    def leaders(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        """Partitions by the broker that leads them; those without a leader, or unknown, under -1."""
        wanted = list(partitions)
        return by_leader(wanted, self.metadata({p.topic for p in wanted}).topics)

    @property
    def round_trip_s(self) -> float:
        """The longest of its connections'; 0 while none has had a response."""
        return max((one.round_trip_s for one in self._connections.values()), default=0.0)

    # -- connections ---------------------------------------------------------------------------------------------

    def ask_another(self) -> None:
        """What a broker has said of leaders does not hold: it may be cut off from the controllers, and not from us. The
        next question for any goes to another one, if one answers soon."""
        self._doubts.doubt()

    def _ask_any(self, request: Request, answer: type[Response]) -> Response:
        """Ask known brokers, then the bootstrap servers, all at once: the first good answer wins.

        One after the other would cost a time limit for each dead broker, and a plan must be there within seconds; so
        would waiting for all of them, for one that hangs.
        """
        addresses = list(dict.fromkeys([*self._brokers.values(), *self.config.bootstrap]))
        ours = tuple(self._connections)
        if not ours:
            next(filter(self._has, addresses), None)
        self._open_others(addresses)
        for address, connection in self._doubts.in_order(self._connections):
            # Others were not asked yet: one that was kept is not waited for as if there were none.
            brief = min(self.timeout_s, _KEPT_S + _KEPT_TRIPS * connection.round_trip_s)
            limit = brief if self.hurry or address not in ours else self.timeout_s
            try:
                return self._told(address, connection.call(request, answer, limit))
            except RemoteFault:
                self._drop(address)
        with closing(Opening(self.name, self.open, addresses)) as opening:
            for found in opening.connected(self.timeout_s):
                self._connections |= found
                for address, connection in found.items():
                    try:
                        return self._told(address, connection.call(request, answer))
                    except RemoteFault as error:
                        self._drop(address)
                        opening.problems.append(error)
            raise nobody_answered(self.name, self.config.control["bootstrap.servers"], opening.problems)

    def _told(self, address: tuple[str, int], said: Response) -> Response:
        self._doubts.told(address)
        return said

    def _open_others(self, addresses: Sequence[tuple[str, int]]) -> None:
        if others := self._doubts.to_open(addresses, self._connections, time.monotonic()):
            limit_s = _KEPT_S + _SIGN_IN_TRIPS * self.round_trip_s
            # Nobody needs them: where a file cannot be read now, we go on with the connections that we have.
            with suppress(BadRequest), closing(Opening(self.name, self.open, others)) as opening:
                self._connections |= next(opening.connected(limit_s), {})

    def address(self, broker: int | None) -> tuple[str, int]:
        """Host and port of a broker; of any that answers, when None."""
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

    def key(self, address: tuple[str, int]) -> Hashable:
        """Of connections to this broker that are alike: see `kept.KEPT`."""
        return address, tuple(sorted(self.config.properties(self.principal).items()))

    def _has(self, address: tuple[str, int]) -> bool:
        """Whether there is a connection, of ours or kept by another client; it may have died while idle."""
        if address not in self._connections and (kept := KEPT.take(self.key(address))):
            kept.wait_for(self.timeout_s)
            self._connections[address] = kept
        return address in self._connections

    def lend(self, address: tuple[str, int]) -> Connection | None:
        """A connection that is open, for another thread; to be given back when its answer was taken whole."""
        if self._has(address) and self._connections[address].has_something:  # its end: brokers close what is idle
            self._connections.pop(address).close()
        return self._connections.pop(address) if self._has(address) else None

    def give_back(self, address: tuple[str, int], connection: Connection) -> None:
        self._drop(address)
        self._connections[address] = connection

    def open(self, address: tuple[str, int]) -> Connection:
        """A new one, which is the caller's. By any thread."""
        return Connection(self.config, self.principal, *address, timeout_s=self.timeout_s)

    def _connect(self, address: tuple[str, int]) -> Connection:
        if address not in self._connections:
            self._connections[address] = self.open(address)
        return self._connections[address]

    def _drop(self, address: tuple[str, int]) -> None:
        if connection := self._connections.pop(address, None):
            connection.close()
            KEPT.forget(self.key(address))

    def close(self) -> None:
        for address in list(self._connections):
            KEPT.put(self.key(address), self._connections.pop(address))

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

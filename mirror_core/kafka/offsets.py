"""Log offsets (start, high watermark, stable end, log end) and producer states."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import DescribeProducersResponse, ProducerState
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v5.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.at_once import Silent, ask_brokers
from mirror_core.kafka.client import ClusterClient, TopicView, by_leader
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.transient import MISLED, TRANSIENT
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import ClusterName, Offset, Partition

_AGAIN_S: Final = 0.1


class Point(Enum):
    """Timestamp, replica id and isolation level of ListOffsets."""

    START = (-2, -1, 0)
    """First offset still in the log."""
    HIGH_WATERMARK = (-1, -1, 0)
    """Next offset after what all in-sync replicas have."""
    STABLE_END = (-1, -1, 1)
    """Last stable offset: the first that a read_committed consumer cannot read yet."""
    LOG_END = (-1, 0, 0)
    """Log end on the leader. Only replicas are told it, hence replica id 0."""
    REPLICA_END = (-1, -2, 0)
    """Log end on the broker asked, leader or not (the debugging replica id)."""


def list_offsets(client: ClusterClient, partitions: Iterable[Partition], point: Point) -> dict[Partition, Offset]:
    """Retries leader changes until the client's time limit."""
    return list_points(client, partitions, [point])[point]


def list_points(
    client: ClusterClient, partitions: Iterable[Partition], points: Sequence[Point]
) -> dict[Point, dict[Partition, Offset]]:
    """In this order, in one round trip to each leader.

    The limit restarts with each offset learned: a broker given a thousand partitions takes them up one by one and
    answers NOT_LEADER_OR_FOLLOWER for the rest.
    """
    wanted = list(dict.fromkeys(partitions))
    found: dict[Point, dict[Partition, Offset]] = {point: {} for point in points}
    deadline = time.monotonic() + client.timeout_s
    problem = ""
    while wanted:
        before, misled = len(wanted), False
        for broker, mine in client.leaders(wanted).items():
            if broker < 0:  # this broker may be cut off from the controllers
                problem, misled = f"no leader for {mine[0]}", True
                continue
            answers = client.call_each([offsets_request(mine, p) for p in points], ListOffsetsResponse, broker)
            for point, answer in zip(points, answers, strict=True):
                for partition, code, offset in _rows(answer):
                    if code is ErrorCode.none:
                        found[point][partition] = offset
                    else:
                        problem = _passing(client, partition, code)
                        misled |= code in MISLED
            wanted = [p for p in wanted if not all(p in at for at in found.values())]
        if len(wanted) < before:
            deadline = time.monotonic() + client.timeout_s
        if wanted:
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {client.name}: offsets not known after {client.timeout_s} s: {problem}")
            if misled:
                client.ask_another()
            time.sleep(0.05)
    return found


def _rows(answer: ListOffsetsResponse) -> Iterator[tuple[Partition, ErrorCode, Offset]]:
    for topic in answer.topics:
        for row in topic.partitions:
            yield Partition(str(topic.name), int(row.partition_index)), row.error_code, Offset(int(row.offset))


def _passing(client: ClusterClient, partition: Partition, code: ErrorCode) -> str:
    if code is ErrorCode.topic_authorization_failed:
        raise MissingPermission(
            f"cluster {client.name}, topic {partition.topic}: "
            f"{client.config.user(client.principal) or 'this principal'} may not DESCRIBE it"
        )
    if code in TRANSIENT or code is ErrorCode.unknown_topic_or_partition:
        return f"{partition}: {code.name}"
    raise RemoteFault(f"cluster {client.name}, {partition}: ListOffsets: {code.name}")


@dataclass(frozen=True, slots=True)
class Led:
    offsets: Mapping[Partition, Offset]
    leaderless: frozenset[Partition]


def led_offsets(
    client: ClusterClient,
    partitions: Iterable[Partition],
    point: Point,
    *,
    within_s: float = 0.0,
    led: Mapping[str, TopicView] | None = None,
) -> Led:
    """Silent brokers and offline partitions hide no others.

    Retries for `within_s` what no silent leader explains. Raises when no broker answers. `topics`: metadata to begin
    with.
    """
    wanted, found = dict.fromkeys(partitions), dict[Partition, Offset]()
    deadline = time.monotonic() + within_s
    while True:
        leaders = by_leader(wanted, led) if led is not None else client.leaders(wanted) if wanted else {}
        told, led = led, None
        leaderless = frozenset(leaders.pop(-1, ()))
        silent = set[Partition]()
        misled = False
        answers = ask_brokers(client, {broker: _asking(mine, point) for broker, mine in leaders.items()})
        for broker, answer in answers.items():
            if isinstance(answer, Silent):
                silent.update(leaders[broker])
            elif isinstance(answer, RemoteFault):
                misled = True
            else:
                for partition, code, offset in _rows(answer):
                    if code is ErrorCode.none:
                        found[partition] = offset
                    misled |= code in MISLED
        wanted = {p: None for p in wanted if p not in found}
        if misled:
            client.ask_another()
        if told is not None and wanted:
            continue  # given metadata may be stale
        if wanted.keys() <= leaderless | silent or time.monotonic() >= deadline:
            return Led(found, leaderless)
        time.sleep(0.05)


def _asking(partitions: list[Partition], point: Point) -> Callable[[Connection], ListOffsetsResponse]:
    return lambda connection: connection.call(offsets_request(partitions, point), ListOffsetsResponse)


def known_offsets(
    client: ClusterClient,
    partitions: Iterable[Partition],
    point: Point,
    *,
    within_s: float = 0.0,
    led: Mapping[str, TopicView] | None = None,
) -> dict[Partition, Offset]:
    """Without offline partitions, silent brokers, and high watermarks unknown to new leaders (KIP-207)."""
    return dict(led_offsets(client, partitions, point, within_s=within_s, led=led).offsets)


def untold(cluster: ClusterName, partition: Partition, led: Led) -> str:
    return f"cluster {cluster}: " + ("nobody leads it" if partition in led.leaderless else "its leader does not answer")


def points_of(client: ClusterClient, partitions: Collection[Partition], points: Sequence[Point]) -> list[Led]:
    """One result per point; offline partitions are retried within the client's limit."""
    deadline, found = time.monotonic() + client.timeout_s, list[Led]()
    for point in points:
        while True:
            rest_s = max(0.0, deadline - time.monotonic())
            led = led_offsets(client, partitions, point, within_s=rest_s)
            if len(led.offsets) == len(partitions) or time.monotonic() >= deadline:
                break
            time.sleep(min(rest_s, _AGAIN_S))
        found.append(led)
    return found


def offsets_of(answer: ListOffsetsResponse) -> dict[Partition, Offset]:
    return {partition: offset for partition, code, offset in _rows(answer) if code is ErrorCode.none}


def replica_ends(client: ClusterClient, broker: int, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """Without partitions that the broker does not hold."""
    request = offsets_request(sorted(partitions), Point.REPLICA_END)
    return offsets_of(client.call(request, ListOffsetsResponse, broker))


def offsets_request(partitions: list[Partition], point: Point) -> ListOffsetsRequest:
    """All with the same leader."""
    timestamp, replica, isolation = point.value
    at, topics = i64(timestamp), dict[str, list[ListOffsetsPartition]]()
    # Shared by topics: creating them took half of the time.
    rows = {i: ListOffsetsPartition(partition_index=i32(i), timestamp=at) for i in {p.index for p in partitions}}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(rows[partition.index])
    return ListOffsetsRequest(
        replica_id=BrokerId(replica),
        isolation_level=i8(isolation),
        topics=tuple(ListOffsetsTopic(name=TopicName(t), partitions=tuple(ps)) for t, ps in topics.items()),
    )


def log_start(connection: Connection, partition: Partition) -> tuple[ErrorCode, int]:
    """First offset in the log, from its leader: one round trip, no retry.

    The high watermark is requested, too: a new leader that does not know it refuses (KIP-207), while a Fetch would
    report too early an end.
    """
    requests = [offsets_request([partition], point) for point in (Point.HIGH_WATERMARK, Point.START)]
    rows = [row for answer in connection.call_each(requests, ListOffsetsResponse) for row in _rows(answer)]
    for _, code, _ in rows:
        if code is not ErrorCode.none:
            return code, -1
    return (ErrorCode.none, int(rows[-1][2])) if rows else (ErrorCode.unknown_topic_or_partition, -1)


@dataclass(frozen=True, slots=True)
class ProducerView:
    producer_id: int
    epoch: int
    last_sequence: int
    coordinator_epoch: int
    open_transaction_start: int
    """Or -1."""
    newest_ms: int
    """As the producer set it, or a marker's."""


@dataclass(frozen=True, slots=True)
class Producers:
    states: Mapping[Partition, tuple[ProducerView, ...]]
    unknown: Mapping[Partition, RemoteFault]


def describe_producers(
    client: ClusterClient, partitions: Iterable[Partition], broker: int | None = None
) -> Mapping[Partition, tuple[ProducerView, ...]]:
    """From each leader, or one broker's replicas, which may lag. Needs READ. Raises if any is unknown."""
    found = known_producers(client, partitions, broker)
    for error in found.unknown.values():
        raise error
    return found.states


def known_producers(client: ClusterClient, partitions: Iterable[Partition], broker: int | None = None) -> Producers:
    """Denied or offline partitions hide no others."""
    found: dict[Partition, tuple[ProducerView, ...]] = {}
    unknown: dict[Partition, RemoteFault] = {}
    asked = client.leaders(partitions) if broker is None else {broker: list(partitions)}
    for leader, mine in asked.items():
        if leader < 0:
            unknown |= {p: Unreachable(f"cluster {client.name}: no leader for {p}") for p in mine}
            continue
        try:
            answers = client.call_each(producers_requests(mine), DescribeProducersResponse, leader)
        except Unreachable as error:
            unknown |= dict.fromkeys(mine, error)
            continue
        for answer in answers:
            answered = producers_of(client, answer)
            found |= answered.states
            unknown |= answered.unknown
    return Producers(found, unknown)


_PRODUCERS_TOGETHER: Final = 100
"""A partition may have thirty thousand producers of 40 bytes."""


def producers_requests(partitions: Sequence[Partition]) -> list[DescribeProducersRequest]:
    """Several: all producers could exceed one response."""
    return [
        _producers_request(partitions[at : at + _PRODUCERS_TOGETHER])
        for at in range(0, len(partitions), _PRODUCERS_TOGETHER)
    ]


def _producers_request(partitions: Iterable[Partition]) -> DescribeProducersRequest:
    topics: dict[str, list[i32]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    return DescribeProducersRequest(
        topics=tuple(TopicRequest(name=TopicName(t), partition_indexes=tuple(i)) for t, i in topics.items())
    )


def producers_of(client: ClusterClient, answer: DescribeProducersResponse) -> Producers:
    found: dict[Partition, tuple[ProducerView, ...]] = {}
    unknown: dict[Partition, RemoteFault] = {}
    for topic in answer.topics:
        for row in topic.partitions:
            partition = Partition(str(topic.name), int(row.partition_index))
            if row.error_code is ErrorCode.topic_authorization_failed:
                unknown[partition] = MissingPermission(
                    f"cluster {client.name}, topic {partition.topic}: "
                    f"{client.config.user(client.principal) or 'this principal'} may not READ it"
                )
            elif row.error_code is not ErrorCode.none:
                words = f"cluster {client.name}, {partition}: DescribeProducers: {row.error_code.name}"
                unknown[partition] = Unreachable(words)
            else:
                found[partition] = tuple(_view(one) for one in row.active_producers)
    return Producers(found, unknown)


def _view(one: ProducerState) -> ProducerView:
    return ProducerView(
        int(one.producer_id),
        int(one.producer_epoch),
        int(one.last_sequence),
        int(one.coordinator_epoch),
        int(one.current_txn_start_offset),
        int(one.last_timestamp),
    )

"""Log offsets and producer states."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import DescribeProducersResponse, ProducerState
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v5.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import ClusterClient, TopicMetadata, group_by_leader
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, STALE_METADATA_CODES
from mirror_core.kafka.fan_out import BrokerTimeout, call_brokers
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import ClusterName, Offset, Partition

_RETRY_PAUSE_S: Final = 0.1


class OffsetPoint(Enum):
    """Timestamp, replica id and isolation level of ListOffsets."""

    START = (-2, -1, 0)
    HIGH_WATERMARK = (-1, -1, 0)
    """Next offset after what all in-sync replicas have."""
    STABLE_END = (-1, -1, 1)
    """Last stable offset: the first that a read_committed consumer cannot read yet."""
    LOG_END = (-1, 0, 0)
    """On the leader. Only replicas are told it, hence replica id 0."""
    REPLICA_END = (-1, -2, 0)
    """On the broker asked, leader or not (the debugging replica id)."""


@dataclass(frozen=True, slots=True)
class TimePoint:
    """First record that is not older; -1: none."""

    time_ms: int

    @property
    def value(self) -> tuple[int, int, int]:
        return self.time_ms, -1, 0


def list_offsets(client: ClusterClient, partitions: Iterable[Partition], point: OffsetPoint) -> dict[Partition, Offset]:
    """Retries leader changes until the client's time limit."""
    return list_offset_points(client, partitions, [point])[point]


def list_offset_points(
    client: ClusterClient, partitions: Iterable[Partition], points: Sequence[OffsetPoint]
) -> dict[OffsetPoint, dict[Partition, Offset]]:
    """In this order, in one round trip to each leader.

    The limit restarts with each offset learned: a broker given a thousand partitions takes them up one by one and
    answers NOT_LEADER_OR_FOLLOWER for the rest.
    """
    remaining = list(dict.fromkeys(partitions))
    offsets: dict[OffsetPoint, dict[Partition, Offset]] = {point: {} for point in points}
    deadline = time.monotonic() + client.timeout_s
    problem = ""
    while remaining:
        count_before, is_stale = len(remaining), False
        for broker, leader_partitions in client.leaders(remaining).items():
            if broker < 0:  # this broker may be cut off from the controllers
                problem, is_stale = f"no leader for {leader_partitions[0]}", True
                continue
            responses = client.call_each(
                [build_list_offsets(leader_partitions, p) for p in points], ListOffsetsResponse, broker
            )
            for point, response in zip(points, responses, strict=True):
                for partition, code, offset, _ in _iter_rows(response):
                    if code is ErrorCode.none:
                        offsets[point][partition] = offset
                    else:
                        problem = _format_retriable(client, partition, code)
                        is_stale |= code in STALE_METADATA_CODES
            remaining = [p for p in remaining if not all(p in known for known in offsets.values())]
        if len(remaining) < count_before:
            deadline = time.monotonic() + client.timeout_s
        if remaining:
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {client.name}: offsets not known after {client.timeout_s} s: {problem}")
            if is_stale:
                client.mark_metadata_stale()
            time.sleep(0.05)
    return offsets


def _iter_rows(response: ListOffsetsResponse) -> Iterator[tuple[Partition, ErrorCode, Offset, int]]:
    """The last one is the leader epoch; -1: unknown."""
    for topic in response.topics:
        for row in topic.partitions:
            partition = Partition(str(topic.name), int(row.partition_index))
            yield partition, row.error_code, Offset(int(row.offset)), int(row.leader_epoch)


def _format_retriable(client: ClusterClient, partition: Partition, code: ErrorCode) -> str:
    if code is ErrorCode.topic_authorization_failed:
        raise MissingPermission(
            f"cluster {client.name}, topic {partition.topic}: "
            f"{client.config.user(client.principal) or 'this principal'} may not DESCRIBE it"
        )
    if code in RETRIABLE_CODES or code is ErrorCode.unknown_topic_or_partition:
        return f"{partition}: {code.name}"
    raise RemoteFault(f"cluster {client.name}, {partition}: ListOffsets: {code.name}")


@dataclass(frozen=True, slots=True)
class OffsetsResult:
    offsets: Mapping[Partition, Offset]
    offline: frozenset[Partition]
    leader_epochs: Mapping[Partition, int] = field(default_factory=dict)
    """Under which leaders told ends. Given metadata may be older, or newer; -1: unknown."""


def list_available_offsets(
    client: ClusterClient,
    partitions: Iterable[Partition],
    point: OffsetPoint | TimePoint,
    *,
    within_s: float = 0.0,
    topics: Mapping[str, TopicMetadata] | None = None,
) -> OffsetsResult:
    """Silent brokers and offline partitions hide no others.

    Retries for `within_s` what no silent leader explains. Raises when no broker answers. `topics`: metadata to begin
    with.
    """
    remaining, offsets, leader_epochs = dict.fromkeys(partitions), dict[Partition, Offset](), dict[Partition, int]()
    deadline = time.monotonic() + within_s
    while True:
        leaders = (
            group_by_leader(remaining, topics) if topics is not None else client.leaders(remaining) if remaining else {}
        )
        given_topics, topics = topics, None
        offline = frozenset(leaders.pop(-1, ()))
        timed_out = set[Partition]()
        is_stale = False
        results = call_brokers(
            client, {broker: _build_call(leader_partitions, point) for broker, leader_partitions in leaders.items()}
        )
        for broker, result in results.items():
            if isinstance(result, BrokerTimeout):
                timed_out.update(leaders[broker])
            elif isinstance(result, RemoteFault):
                is_stale = True
            else:
                for partition, code, offset, leader_epoch in _iter_rows(result):
                    if code is ErrorCode.none:
                        offsets[partition], leader_epochs[partition] = offset, leader_epoch
                    is_stale |= code in STALE_METADATA_CODES
        remaining = {p: None for p in remaining if p not in offsets}
        if is_stale:
            client.mark_metadata_stale()
        if given_topics is not None and remaining:
            continue  # given metadata may be stale
        if remaining.keys() <= offline | timed_out or time.monotonic() >= deadline:
            return OffsetsResult(offsets, offline, leader_epochs)
        time.sleep(0.05)


def _build_call(
    partitions: list[Partition], point: OffsetPoint | TimePoint
) -> Callable[[Connection], ListOffsetsResponse]:
    return lambda connection: connection.call(build_list_offsets(partitions, point), ListOffsetsResponse)


def list_known_offsets(
    client: ClusterClient,
    partitions: Iterable[Partition],
    point: OffsetPoint | TimePoint,
    *,
    within_s: float = 0.0,
    topics: Mapping[str, TopicMetadata] | None = None,
) -> dict[Partition, Offset]:
    """Without offline partitions, silent brokers, and high watermarks unknown to new leaders (KIP-207)."""
    return dict(list_available_offsets(client, partitions, point, within_s=within_s, topics=topics).offsets)


def explain_missing_offset(cluster: ClusterName, partition: Partition, result: OffsetsResult) -> str:
    return f"cluster {cluster}: " + ("nobody leads it" if partition in result.offline else "its leader does not answer")


def list_points_with_retry(
    client: ClusterClient, partitions: Collection[Partition], points: Sequence[OffsetPoint]
) -> list[OffsetsResult]:
    """Offline partitions are retried within the client's limit."""
    deadline, results = time.monotonic() + client.timeout_s, list[OffsetsResult]()
    for point in points:
        while True:
            rest_s = max(0.0, deadline - time.monotonic())
            result = list_available_offsets(client, partitions, point, within_s=rest_s)
            if len(result.offsets) == len(partitions) or time.monotonic() >= deadline:
                break
            time.sleep(min(rest_s, _RETRY_PAUSE_S))
        results.append(result)
    return results


def parse_offsets(response: ListOffsetsResponse) -> dict[Partition, Offset]:
    return {partition: offset for partition, code, offset, _ in _iter_rows(response) if code is ErrorCode.none}


def list_replica_ends(client: ClusterClient, broker: int, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """Without partitions that the broker does not hold."""
    request = build_list_offsets(sorted(partitions), OffsetPoint.REPLICA_END)
    return parse_offsets(client.call(request, ListOffsetsResponse, broker))


def build_list_offsets(partitions: list[Partition], point: OffsetPoint | TimePoint) -> ListOffsetsRequest:
    """All with the same leader."""
    timestamp, replica, isolation = point.value
    timestamp_ms, topics = i64(timestamp), dict[str, list[ListOffsetsPartition]]()
    # Shared by topics: creating them took half of the time.
    rows = {
        i: ListOffsetsPartition(partition_index=i32(i), timestamp=timestamp_ms) for i in {p.index for p in partitions}
    }
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(rows[partition.index])
    return ListOffsetsRequest(
        replica_id=BrokerId(replica),
        isolation_level=i8(isolation),
        topics=tuple(
            ListOffsetsTopic(name=TopicName(t), partitions=tuple(rows_of_topic)) for t, rows_of_topic in topics.items()
        ),
    )


def fetch_log_start(connection: Connection, partition: Partition) -> tuple[ErrorCode, int]:
    """From the leader: one round trip, no retry.

    The high watermark is requested, too: a new leader that does not know it refuses (KIP-207), while a Fetch would
    report too early an end.
    """
    requests = [build_list_offsets([partition], point) for point in (OffsetPoint.HIGH_WATERMARK, OffsetPoint.START)]
    rows = [row for response in connection.call_each(requests, ListOffsetsResponse) for row in _iter_rows(response)]
    for _, code, _, _ in rows:
        if code is not ErrorCode.none:
            return code, -1
    return (ErrorCode.none, int(rows[-1][2])) if rows else (ErrorCode.unknown_topic_or_partition, -1)


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    producer_id: int
    epoch: int
    last_sequence: int
    coordinator_epoch: int
    open_transaction_start: int
    """Or -1."""
    newest_ms: int
    """As the producer set it, or a marker's."""


@dataclass(frozen=True, slots=True)
class ProducersResult:
    states: Mapping[Partition, tuple[PartitionProducer, ...]]
    unknown: Mapping[Partition, RemoteFault]


def describe_producers(
    client: ClusterClient, partitions: Iterable[Partition], broker: int | None = None
) -> Mapping[Partition, tuple[PartitionProducer, ...]]:
    """From each leader, or one broker's replicas, which may lag. Raises if any is unknown."""
    result = describe_known_producers(client, partitions, broker)
    for error in result.unknown.values():
        raise error
    return result.states


def describe_known_producers(
    client: ClusterClient, partitions: Iterable[Partition], broker: int | None = None
) -> ProducersResult:
    """Denied or offline partitions hide no others."""
    states: dict[Partition, tuple[PartitionProducer, ...]] = {}
    unknown: dict[Partition, RemoteFault] = {}
    by_broker = client.leaders(partitions) if broker is None else {broker: list(partitions)}
    for leader, broker_partitions in by_broker.items():
        if leader < 0:
            unknown |= {p: Unreachable(f"cluster {client.name}: no leader for {p}") for p in broker_partitions}
            continue
        try:
            responses = client.call_each(build_describe_producers(broker_partitions), DescribeProducersResponse, leader)
        except Unreachable as error:
            unknown |= dict.fromkeys(broker_partitions, error)
            continue
        for response in responses:
            parsed = parse_producers(client, response)
            states |= parsed.states
            unknown |= parsed.unknown
    return ProducersResult(states, unknown)


_MAX_PARTITIONS_PER_REQUEST: Final = 100
"""A partition may have thirty thousand producers of 40 bytes."""


def build_describe_producers(partitions: Sequence[Partition]) -> list[DescribeProducersRequest]:
    """Several: all producers could exceed one response."""
    return [
        _build_producers_request(partitions[start : start + _MAX_PARTITIONS_PER_REQUEST])
        for start in range(0, len(partitions), _MAX_PARTITIONS_PER_REQUEST)
    ]


def _build_producers_request(partitions: Iterable[Partition]) -> DescribeProducersRequest:
    topics: dict[str, list[i32]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    return DescribeProducersRequest(
        topics=tuple(TopicRequest(name=TopicName(t), partition_indexes=tuple(i)) for t, i in topics.items())
    )


def parse_producers(client: ClusterClient, response: DescribeProducersResponse) -> ProducersResult:
    states: dict[Partition, tuple[PartitionProducer, ...]] = {}
    unknown: dict[Partition, RemoteFault] = {}
    for topic in response.topics:
        for row in topic.partitions:
            partition = Partition(str(topic.name), int(row.partition_index))
            if row.error_code is ErrorCode.topic_authorization_failed:
                unknown[partition] = MissingPermission(
                    f"cluster {client.name}, topic {partition.topic}: "
                    f"{client.config.user(client.principal) or 'this principal'} may not READ it"
                )
            elif row.error_code is not ErrorCode.none:
                reason = f"cluster {client.name}, {partition}: DescribeProducers: {row.error_code.name}"
                unknown[partition] = Unreachable(reason)
            else:
                states[partition] = tuple(_to_partition_producer(producer) for producer in row.active_producers)
    return ProducersResult(states, unknown)


def _to_partition_producer(producer: ProducerState) -> PartitionProducer:
    return PartitionProducer(
        int(producer.producer_id),
        int(producer.producer_epoch),
        int(producer.last_sequence),
        int(producer.coordinator_epoch),
        int(producer.current_txn_start_offset),
        int(producer.last_timestamp),
    )


def find_offline_partitions(client: ClusterClient, partitions: Collection[Partition]) -> frozenset[Partition]:
    """The higher leader epoch counts. A silent leader is still a leader."""
    topics = {p.topic for p in partitions}
    first = client.metadata(topics).topics
    client.mark_metadata_stale()
    second = client.metadata(topics).topics
    return frozenset(p for p in partitions if max(_epoch_and_broker(first, p), _epoch_and_broker(second, p))[1] < 0)


def _epoch_and_broker(topics: Mapping[str, TopicMetadata], partition: Partition) -> tuple[int, int]:
    topic = topics.get(partition.topic)
    leader = topic.partitions.get(partition.index) if topic else None
    return (leader.epoch, leader.broker) if leader else (-1, -1)


def list_offsets_confirmed(
    client: ClusterClient, partitions: Collection[Partition], point: OffsetPoint, *, within_s: float
) -> OffsetsResult:
    """Partitions with a silent leader are in neither part."""
    result = list_available_offsets(client, partitions, point, within_s=within_s)
    if not result.offline:
        return result
    try:
        offline = find_offline_partitions(client, result.offline)
        more_offsets = list_available_offsets(client, result.offline - offline, point, within_s=within_s)
    except RemoteFault:  # keep what is known
        return result
    return OffsetsResult({**result.offsets, **more_offsets.offsets}, offline)

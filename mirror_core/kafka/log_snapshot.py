"""Log bounds and producers from each leader in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kio.schema.describe_log_dirs.v1.request import DescribableLogDirTopic, DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v1.response import DescribeLogDirsResponse
from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.list_offsets.v5.response import ListOffsetsResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.codec import AnyResponse
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.fan_out import call_brokers
from mirror_core.kafka.log_offsets import (
    OffsetPoint,
    PartitionProducer,
    build_describe_producers,
    build_list_offsets,
    parse_offsets,
    parse_producers,
)
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSnapshot:
    """In request order: a broker handles a connection's requests one by one."""

    start: Offset
    end_before: Offset
    """Before the producers were described."""
    producers: tuple[PartitionProducer, ...]
    high_watermark: Offset | None
    end_after: Offset
    """After everything else."""


@dataclass(frozen=True, slots=True)
class LogSnapshots:
    logs: Mapping[Partition, LogSnapshot]
    unknown: Mapping[Partition, RemoteFault]


@dataclass(frozen=True, slots=True)
class OffsetPairs:
    """The second was requested after the first."""

    pairs: Mapping[Partition, tuple[Offset, Offset]]
    unknown: Mapping[Partition, RemoteFault]


_SNAPSHOT_POINTS = (OffsetPoint.START, OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK, OffsetPoint.LOG_END)


def snapshot_logs(client: ClusterClient, by_leader: Mapping[int, list[Partition]]) -> LogSnapshots:
    """Without partitions that moved, or whose broker does not answer."""
    logs: dict[Partition, LogSnapshot] = {}
    unknown: dict[Partition, RemoteFault] = {}
    results = call_brokers(
        client, {broker: _build_snapshot_call(leader_partitions) for broker, leader_partitions in by_leader.items()}
    )
    for broker, result in results.items():
        if isinstance(result, RemoteFault):
            unknown |= dict.fromkeys(by_leader[broker], result)
        else:
            snapshots, missing_logs = _assemble_snapshots(client, result)
            logs |= snapshots
            unknown |= missing_logs
    return LogSnapshots(logs, unknown)


def _build_snapshot_call(partitions: list[Partition]) -> Callable[[Connection], list[AnyResponse]]:
    start, end_before, high_watermark, end_after = (
        (build_list_offsets(partitions, p), ListOffsetsResponse) for p in _SNAPSHOT_POINTS
    )
    producers = [(request, DescribeProducersResponse) for request in build_describe_producers(partitions)]
    return lambda connection: connection.call_mixed([start, end_before, *producers, high_watermark, end_after])


def list_offset_pairs(
    client: ClusterClient, by_leader: Mapping[int, list[Partition]], first: OffsetPoint, last: OffsetPoint
) -> OffsetPairs:
    pairs: dict[Partition, tuple[Offset, Offset]] = {}
    unknown: dict[Partition, RemoteFault] = {}
    calls = {
        broker: _build_offsets_call(leader_partitions, first, last) for broker, leader_partitions in by_leader.items()
    }
    for broker, result in call_brokers(client, calls).items():
        if isinstance(result, RemoteFault):
            unknown |= dict.fromkeys(by_leader[broker], result)
        else:
            first_offsets, last_offsets = map(parse_offsets, result)
            pairs |= {p: (first_offsets[p], last_offsets[p]) for p in first_offsets.keys() & last_offsets.keys()}
    return OffsetPairs(pairs, unknown)


def _build_offsets_call(
    partitions: list[Partition], *points: OffsetPoint
) -> Callable[[Connection], list[ListOffsetsResponse]]:
    requests = [build_list_offsets(partitions, point) for point in points]
    return lambda connection: connection.call_each(requests, ListOffsetsResponse)


def _assemble_snapshots(
    client: ClusterClient, responses: list[AnyResponse]
) -> tuple[dict[Partition, LogSnapshot], Mapping[Partition, RemoteFault]]:
    states, unknown = dict[Partition, tuple[PartitionProducer, ...]](), dict[Partition, RemoteFault]()
    offsets = []
    for response in responses:
        if isinstance(response, DescribeProducersResponse):
            producers = parse_producers(client, response)
            states |= producers.states
            unknown |= producers.unknown
        elif isinstance(response, ListOffsetsResponse):
            offsets.append(parse_offsets(response))
    starts, ends_before, high_watermarks, ends_after = offsets
    return {
        p: LogSnapshot(
            start=starts[p],
            end_before=ends_before[p],
            producers=partition_producers,
            high_watermark=high_watermarks.get(p),
            end_after=ends_after[p],
        )
        for p, partition_producers in states.items()
        if p in starts and p in ends_before and p in ends_after
    }, unknown


def fetch_log_sizes(client: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Largest replica's. Unknown ones are left out."""
    topics: dict[str, list[i32]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    request = DescribeLogDirsRequest(
        topics=tuple(DescribableLogDirTopic(topic=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items())
    )
    sizes: dict[Partition, int] = {}
    for broker in client.brokers() if topics else ():
        for log_dir in client.call(request, DescribeLogDirsResponse, broker).results:
            for topic in log_dir.topics:
                for row in topic.partitions:
                    partition = Partition(str(topic.name), int(row.partition_index))
                    if not row.is_future_key:
                        sizes[partition] = max(sizes.get(partition, 0), int(row.partition_size))
    return sizes

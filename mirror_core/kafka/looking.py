"""Log bounds and producers from each leader in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.list_offsets.v5.response import ListOffsetsResponse

from mirror_core.kafka.at_once import call_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.codec import AnyResponse
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.offsets import (
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

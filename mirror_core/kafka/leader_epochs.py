"""Where leader epochs end in a log (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v2.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.offset_for_leader_epoch.v2.response import OffsetForLeaderEpochResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from mirror_core.kafka.client import ClusterClient, Leader
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, make_fault
from mirror_core.kafka.fan_out import call_brokers
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition

_MAX_OLDER_EPOCHS: Final = 8
"""Tried for one offset."""


@dataclass(frozen=True, slots=True)
class EpochEnds:
    offsets: Mapping[Partition, Offset]
    """Without partitions whose leader knows no epoch (formats v0, v1), or none so old."""
    unknown: Mapping[Partition, RemoteFault]
    """Unreachable or MissingPermission."""


def list_epoch_ends(
    client: ClusterClient, epochs: Mapping[Partition, int], by_leader: Mapping[int, list[Partition]]
) -> EpochEnds:
    """Offset after the epoch's last record, or that of the newest older epoch known to the leader.

    What was read under this epoch from there on is no longer in the log. The current epoch yields the log end, a
    forgotten one the log start.
    """
    offsets, unknown = dict[Partition, Offset](), dict[Partition, RemoteFault]()
    calls = {broker: _build_call({p: epochs[p] for p in partitions}) for broker, partitions in by_leader.items()}
    for broker, result in call_brokers(client, calls).items():
        if isinstance(result, RemoteFault):
            unknown |= dict.fromkeys(by_leader[broker], result)
            continue
        for topic in result.topics:
            for row in topic.partitions:
                partition = Partition(str(topic.topic), int(row.partition))
                if row.error_code in RETRIABLE_CODES or row.error_code is ErrorCode.unknown_topic_or_partition:
                    unknown[partition] = Unreachable(f"cluster {client.name}, {partition}: {row.error_code.name}")
                elif row.error_code is not ErrorCode.none:
                    action = "OffsetForLeaderEpoch (needs DESCRIBE)"
                    unknown[partition] = make_fault(client, str(partition), action, row.error_code)
                elif row.end_offset >= 0:
                    offsets[partition] = Offset(int(row.end_offset))
    return EpochEnds(offsets, unknown)


class LogPosition(NamedTuple):
    """Offset next to be read."""

    partition: Partition
    offset: Offset


def find_epochs_before(client: ClusterClient, positions: Iterable[LogPosition]) -> dict[LogPosition, int]:
    """Leader epoch of the record before each offset, as a consumer would commit it.

    Leaves out what is uncertain. Raises only what the Metadata request raises.
    """
    unique_positions = [position for position in dict.fromkeys(positions) if position.offset > 0]
    topics = (
        client.metadata({position.partition.topic for position in unique_positions}).topics if unique_positions else {}
    )
    leaders = {
        partition: topics[partition.topic].partitions[partition.index]
        for partition in {position.partition for position in unique_positions}
        if partition.topic in topics and partition.index in topics[partition.topic].partitions
    }
    leaders = {partition: leader for partition, leader in leaders.items() if leader.broker >= 0 and leader.epoch >= 0}
    epochs_found = dict[LogPosition, int]()
    epochs = {partition: leader.epoch for partition, leader in leaders.items()}
    remaining = [position for position in unique_positions if position.partition in epochs]
    for _ in range(_MAX_OLDER_EPOCHS):
        # Each round tests one epoch per partition.
        epochs_found |= {position: 0 for position in remaining if epochs[position.partition] == 0}
        remaining = [position for position in remaining if epochs[position.partition] > 0]
        epoch_ends = _fetch_epoch_ends(
            client, leaders, {position.partition: epochs[position.partition] - 1 for position in remaining}
        )
        remaining = [position for position in remaining if position.partition in epoch_ends]
        epochs_found |= {
            candidate: epochs[candidate.partition]
            for candidate in remaining
            if candidate.offset > epoch_ends[candidate.partition].end
        }
        remaining = [position for position in remaining if position not in epochs_found]
        epochs |= {position.partition: epoch_ends[position.partition].epoch for position in remaining}
        if not remaining:
            break
    return _confirm_epochs(client, leaders, epochs_found)


def _confirm_epochs(
    client: ClusterClient, leaders: Mapping[Partition, Leader], candidates: Mapping[LogPosition, int]
) -> dict[LogPosition, int]:
    """Keeps epochs that reach the offset, as the leader will tell a consumer."""
    confirmed, remaining = dict[LogPosition, int](), dict(candidates)
    while remaining:
        asked_epochs = {
            position.partition: epoch for position, epoch in remaining.items()
        }  # a request takes one epoch per partition
        ends = _fetch_epoch_ends(client, leaders, asked_epochs)
        asked_positions = {
            position: epoch for position, epoch in remaining.items() if asked_epochs[position.partition] == epoch
        }
        confirmed |= {
            position: epoch
            for position, epoch in asked_positions.items()
            if position.partition in ends
            and ends[position.partition].epoch == epoch
            and position.offset <= ends[position.partition].end
        }
        remaining = {position: epoch for position, epoch in remaining.items() if position not in asked_positions}
    return confirmed


class _EpochEnd(NamedTuple):
    epoch: int
    end: int


def _fetch_epoch_ends(
    client: ClusterClient, leaders: Mapping[Partition, Leader], epochs: Mapping[Partition, int]
) -> dict[Partition, _EpochEnd]:
    by_broker: dict[int, dict[Partition, int]] = {}
    for partition, epoch in epochs.items():
        by_broker.setdefault(leaders[partition].broker, {})[partition] = epoch
    calls = {broker: _build_call(broker_epochs, leaders) for broker, broker_epochs in by_broker.items()}
    return {
        Partition(str(topic.topic), int(row.partition)): _EpochEnd(int(row.leader_epoch), int(row.end_offset))
        for result in call_brokers(client, calls).values()
        if not isinstance(result, RemoteFault)
        for topic in result.topics
        for row in topic.partitions
        if row.error_code is ErrorCode.none and row.end_offset >= 0 and row.leader_epoch >= 0
    }


def _build_call(
    epochs: Mapping[Partition, int], leaders: Mapping[Partition, Leader] = MappingProxyType({})
) -> Callable[[Connection], OffsetForLeaderEpochResponse]:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for partition, epoch in epochs.items():
        row = OffsetForLeaderPartition(
            partition=i32(partition.index),
            current_leader_epoch=i32(leaders[partition].epoch if partition in leaders else -1),
            leader_epoch=i32(epoch),
        )
        topics.setdefault(partition.topic, []).append(row)
    request = OffsetForLeaderEpochRequest(
        topics=tuple(
            OffsetForLeaderTopic(topic=TopicName(topic), partitions=tuple(rows)) for topic, rows in topics.items()
        )
    )
    return lambda connection: connection.call(request, OffsetForLeaderEpochResponse)

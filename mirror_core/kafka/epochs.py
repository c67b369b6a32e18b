"""Where leader epochs end in a log, according to its current leader (KIP-101, KIP-320)."""

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

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient, Leader
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import fault
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition

_OLDER: Final = 8
"""Limit of older epochs tried for one offset."""


@dataclass(frozen=True, slots=True)
class EpochEnds:
    offsets: Mapping[Partition, Offset]
    """Without partitions whose leader knows no epoch (formats v0, v1), or none so old."""
    unknown: Mapping[Partition, RemoteFault]
    """Unreachable or MissingPermission."""


def epoch_ends(client: ClusterClient, epochs: Mapping[Partition, int], led: Mapping[int, list[Partition]]) -> EpochEnds:
    """Offset after the epoch's last record, or that of the newest older epoch known to the leader.

    Records read under this epoch from there on are no longer in the log. The current epoch yields the log end, a
    forgotten one the log start. Needs DESCRIBE.
    """
    found, unknown = dict[Partition, Offset](), dict[Partition, RemoteFault]()
    asked = {broker: _question({p: epochs[p] for p in mine}) for broker, mine in led.items()}
    for broker, said in ask_brokers(client, asked).items():
        if isinstance(said, RemoteFault):
            unknown |= dict.fromkeys(led[broker], said)
            continue
        for topic in said.topics:
            for answer in topic.partitions:
                partition = Partition(str(topic.topic), int(answer.partition))
                if answer.error_code in TRANSIENT or answer.error_code is ErrorCode.unknown_topic_or_partition:
                    unknown[partition] = Unreachable(f"cluster {client.name}, {partition}: {answer.error_code.name}")
                elif answer.error_code is not ErrorCode.none:
                    words = "OffsetForLeaderEpoch (needs DESCRIBE)"
                    unknown[partition] = fault(client, str(partition), words, answer.error_code)
                elif answer.end_offset >= 0:
                    found[partition] = Offset(int(answer.end_offset))
    return EpochEnds(found, unknown)


class Place(NamedTuple):
    """An offset (next to be read) in a partition's log."""

    partition: Partition
    offset: Offset


def epochs_before(client: ClusterClient, places: Iterable[Place]) -> dict[Place, int]:
    """Leader epoch of the record before each offset, as a consumer would commit it.

    Leaves out what is uncertain. Raises only what the Metadata request raises.
    """
    wanted = [place for place in dict.fromkeys(places) if place.offset > 0]
    view = client.metadata({place.partition.topic for place in wanted}).topics if wanted else {}
    leaders = {
        partition: view[partition.topic].partitions[partition.index]
        for partition in {place.partition for place in wanted}
        if partition.topic in view and partition.index in view[partition.topic].partitions
    }
    leaders = {partition: leader for partition, leader in leaders.items() if leader.broker >= 0 and leader.epoch >= 0}
    found = dict[Place, int]()
    epochs = {partition: leader.epoch for partition, leader in leaders.items()}
    rest = [place for place in wanted if place.partition in epochs]
    for _ in range(_OLDER):
        # Each round tests one epoch per partition.
        found |= {place: 0 for place in rest if epochs[place.partition] == 0}
        rest = [place for place in rest if epochs[place.partition] > 0]
        told = _ends(client, leaders, {place.partition: epochs[place.partition] - 1 for place in rest})
        rest = [place for place in rest if place.partition in told]
        found |= {p: epochs[p.partition] for p in rest if p.offset > told[p.partition].end}
        rest = [place for place in rest if place not in found]
        epochs |= {place.partition: told[place.partition].epoch for place in rest}
        if not rest:
            break
    return _proved(client, leaders, found)


def _proved(client: ClusterClient, leaders: Mapping[Partition, Leader], found: Mapping[Place, int]) -> dict[Place, int]:
    """Keeps epochs that reach the offset, as the leader will tell a consumer."""
    proved, rest = dict[Place, int](), dict(found)
    while rest:
        asked = {place.partition: epoch for place, epoch in rest.items()}  # a request takes one epoch per partition
        ends = _ends(client, leaders, asked)
        mine = {place: epoch for place, epoch in rest.items() if asked[place.partition] == epoch}
        proved |= {
            place: epoch
            for place, epoch in mine.items()
            if place.partition in ends
            and ends[place.partition].epoch == epoch
            and place.offset <= ends[place.partition].end
        }
        rest = {place: epoch for place, epoch in rest.items() if place not in mine}
    return proved


class _End(NamedTuple):
    epoch: int
    end: int


def _ends(
    client: ClusterClient, leaders: Mapping[Partition, Leader], epochs: Mapping[Partition, int]
) -> dict[Partition, _End]:
    by_broker: dict[int, dict[Partition, int]] = {}
    for partition, epoch in epochs.items():
        by_broker.setdefault(leaders[partition].broker, {})[partition] = epoch
    questions = {broker: _question(mine, leaders) for broker, mine in by_broker.items()}
    return {
        Partition(str(topic.topic), int(row.partition)): _End(int(row.leader_epoch), int(row.end_offset))
        for said in ask_brokers(client, questions).values()
        if not isinstance(said, RemoteFault)
        for topic in said.topics
        for row in topic.partitions
        if row.error_code is ErrorCode.none and row.end_offset >= 0 and row.leader_epoch >= 0
    }


def _question(
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
        topics=tuple(OffsetForLeaderTopic(topic=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items())
    )
    return lambda connection: connection.call(request, OffsetForLeaderEpochResponse)

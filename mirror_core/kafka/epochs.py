"""Where a leader epoch ended in a partition's log, as its present leader knows it (KIP-101, KIP-320)."""

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
"""Epochs that are gone back through for one offset: of the others it is not known which one it was written in."""


@dataclass(frozen=True, slots=True)
class EpochEnds:
    """As far as they can be known now."""

    offsets: Mapping[Partition, Offset]
    """Left out are partitions whose leader knows of no epoch at all (message formats v0 and v1), or of none that is as
    new as the one that was asked for."""
    unknown: Mapping[Partition, RemoteFault]
    """Why not: Unreachable, or MissingPermission."""


def epoch_ends(client: ClusterClient, epochs: Mapping[Partition, int], led: Mapping[int, list[Partition]]) -> EpochEnds:
    """Next offset after the last record of each partition's epoch, or of the newest older one that its leader knows.

    Records that were read under this epoch and lie at that offset or behind are no part of the log any more. An epoch
    that was current is answered with the log end, one that retention has forgotten with the log start. One request a
    broker; needs DESCRIBE. `led`: the partitions by the broker that leads them.
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
    """The leader epoch of the record before each offset, as a consumer commits it that has read that record.

    Left out is what is not certain: another leader by now, a log that knows no epochs, one with more epochs behind the
    offset than are asked for. Raises nothing but what asking for the leaders raises.
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
        # A partition has one epoch here at a time: its places differ in when they are found, and in nothing else.
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
    """Those of which a leader says, as it will say it to a consumer, that their epoch has come as far as the offset."""
    proved, rest = dict[Place, int](), dict(found)
    while rest:
        asked = {place.partition: epoch for place, epoch in rest.items()}  # one of each partition by one request
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
    """The newest epoch up to the one that was asked for, and where it ends."""

    epoch: int
    end: int


def _ends(
    client: ClusterClient, leaders: Mapping[Partition, Leader], epochs: Mapping[Partition, int]
) -> dict[Partition, _End]:
    """As far as they are known by those who lead the partitions still, in the same epoch."""
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
    """`leaders`: a broker that does not lead the partition in that epoch refuses to tell."""
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

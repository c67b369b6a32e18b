"""Where a leader epoch ended in a partition's log, as its present leader knows it (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.faults import fault
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition


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


def _question(epochs: Mapping[Partition, int]) -> Callable[[Connection], OffsetForLeaderEpochResponse]:
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for partition, epoch in epochs.items():
        row = OffsetForLeaderPartition(partition=i32(partition.index), leader_epoch=i32(epoch))
        topics.setdefault(partition.topic, []).append(row)
    request = OffsetForLeaderEpochRequest(
        topics=tuple(OffsetForLeaderTopic(topic=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items())
    )
    return lambda connection: connection.call(request, OffsetForLeaderEpochResponse)

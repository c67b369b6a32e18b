"""Replica placement: describe, reassign, elect."""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta

from mirror_core.kafka.at_once import ask_brokers
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.existing import undescribed
from mirror_core.kafka.faults import ErrorCode, fault, settle
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Partition

_PAUSE_S: Final = 0.1
_TOPICS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    leader: int
    """-1: offline."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


def placements(client: ClusterClient, topics: Iterable[str]) -> dict[Partition, Placement]:
    """Without topics that do not exist."""
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(topics)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    found = client.call(request, MetadataResponse).topics
    denied = [str(topic.name) for topic in found if topic.error_code is ErrorCode.topic_authorization_failed]
    if denied:
        raise undescribed(client, denied)
    return {
        Partition(str(topic.name), int(row.partition_index)): Placement(
            leader=int(row.leader_id),
            replicas=tuple(int(node) for node in row.replica_nodes),
            in_sync=tuple(int(node) for node in row.isr_nodes),
        )
        for topic in found
        for row in topic.partitions
    }


@dataclass(frozen=True, slots=True)
class Heard:
    ids: Mapping[str, frozenset[str]]
    silent: tuple[int, ...]
    """They may know any of the topics."""

    def undecided(self, topic: str) -> str:
        """For a topic that only a silent broker may still know."""
        return (
            f"topic {topic}: by the brokers that answer it was deleted or made anew, and broker(s) "
            f"{', '.join(map(str, self.silent))} do not answer: nothing of it is copied until they do. Restore them, "
            "or let the data plane reach them; a broker that its cluster does not list any more is not waited for"
        )


def heard_ids(client: ClusterClient, topics: Iterable[str]) -> Heard:
    """From every broker: one cut off from the controllers has old metadata. Slow ones count as
    unreachable."""
    wanted, silent = sorted(topics), set[int]()
    found: dict[str, set[str]] = {name: set() for name in wanted}
    for first in range(0, len(wanted), _TOPICS_AT_ONCE):
        request = MetadataRequest(
            topics=tuple(
                MetadataRequestTopic(topic_id=None, name=TopicName(name))
                for name in wanted[first : first + _TOPICS_AT_ONCE]
            ),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        asked = dict.fromkeys(client.brokers(), partial(_ids, request))
        for broker, answer in ask_brokers(client, asked).items():
            if isinstance(answer, RemoteFault):
                silent.add(broker)
                continue
            for name, topic_id in answer:
                found[name].add(topic_id)
    return Heard({name: frozenset(ids) for name, ids in found.items()}, tuple(sorted(silent)))


def _ids(request: MetadataRequest, connection: Connection) -> list[tuple[str, str]]:
    """Ids only: a hundred responses are in memory at once."""
    return [
        (str(row.name), row.topic_id.hex)
        for row in connection.call(request, MetadataResponse).topics
        if row.topic_id and row.error_code in (ErrorCode.none, ErrorCode.leader_not_available)
    ]


def reassign(client: ClusterClient, wanted: Mapping[Partition, tuple[int, ...]]) -> None:
    """Returns when the controller accepted. Needs ALTER on the cluster."""
    _alter(client, wanted)


def call_off(client: ClusterClient, partitions: Iterable[Partition]) -> None:
    """A replica being added can be removed before it is in sync only this way."""
    _alter(client, dict.fromkeys(partitions), expected=(ErrorCode.no_reassignment_in_progress,))


def _alter(
    client: ClusterClient,
    wanted: Mapping[Partition, tuple[int, ...] | None],
    expected: Collection[ErrorCode] = (),
) -> None:
    def attempt(rest: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        topics: dict[str, list[ReassignablePartition]] = {}
        for partition in rest:
            nodes = wanted[partition]
            brokers = None if nodes is None else tuple(BrokerId(node) for node in nodes)
            row = ReassignablePartition(partition_index=i32(partition.index), replicas=brokers)
            topics.setdefault(partition.topic, []).append(row)
        request = AlterPartitionReassignmentsRequest(
            topics=tuple(ReassignableTopic(name=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items()),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=client.timeout_s)),
        )
        answer = client.call_controller(request, AlterPartitionReassignmentsResponse)
        if answer.error_code is not ErrorCode.none:
            raise fault(client, "partitions", _ACTION, answer.error_code, answer.error_message)
        return {
            Partition(str(topic.name), int(row.partition_index)): (row.error_code, row.error_message)
            for topic in answer.responses
            for row in topic.partitions
        }

    settle(client, _ACTION, list(wanted), attempt, expected=expected)


_ACTION: Final = "AlterPartitionReassignments (needs ALTER on the cluster)"


def elect_unclean(client: ClusterClient, partitions: Iterable[Partition]) -> None:
    """For offline partitions; loses what the replica lacks. Needs ALTER on the cluster."""

    def attempt(rest: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        topics: dict[str, list[i32]] = {}
        for partition in rest:
            topics.setdefault(partition.topic, []).append(i32(partition.index))
        request = ElectLeadersRequest(
            election_type=_UNCLEAN,
            topic_partitions=tuple(TopicPartitions(topic=TopicName(t), partitions=tuple(i)) for t, i in topics.items()),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=client.timeout_s)),
        )
        answer = client.call_controller(request, ElectLeadersResponse)
        if answer.error_code is not ErrorCode.none:
            raise fault(client, "partitions", _ELECTION, answer.error_code)
        return {
            Partition(str(topic.topic), int(row.partition_id)): (row.error_code, row.error_message)
            for topic in answer.replica_election_results
            for row in topic.partition_result
        }

    settle(client, _ELECTION, list(partitions), attempt, expected=(ErrorCode.election_not_needed,))


_UNCLEAN: Final = i8(1)
_ELECTION: Final = "ElectLeaders (needs ALTER on the cluster)"


def await_replicas(client: ClusterClient, wanted: Mapping[Partition, tuple[int, ...]]) -> None:
    """Exactly these, one leading. Unreachable on timeout."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        now = placements(client, {p.topic for p in wanted})
        late = [p for p, nodes in wanted.items() if set(now[p].replicas) != set(nodes) or now[p].leader not in nodes]
        if not late:
            return
        if time.monotonic() > deadline:
            raise Unreachable(f"cluster {client.name}, {late[0]}: not yet held by broker(s) {wanted[late[0]]} alone")
        time.sleep(_PAUSE_S)

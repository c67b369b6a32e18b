"""Replica placement: describe, reassign, elect. Replication quotas (KIP-73)."""

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
from kio.schema.describe_configs.v1.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v1.response import DescribeConfigsResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.incremental_alter_configs.v0.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v0.response import IncrementalAlterConfigsResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v12.response import MetadataResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.error_mapping import ErrorCode, make_fault, retry_per_key
from mirror_core.kafka.fan_out import call_brokers
from mirror_core.kafka.topic_existence import describe_denied_error, find_existing_topics
from mirror_core.kafka.topics import alter_configs, describe_configs
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.model.text import format_count, format_option, format_shell_command

_PAUSE_S: Final = 0.1
_MAX_TOPICS_PER_REQUEST: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlacement:
    leader: int
    """-1: offline."""
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader_epoch: int = -1


def describe_placements(client: ClusterClient, topics: Iterable[str]) -> dict[Partition, ReplicaPlacement]:
    """Without topics that do not exist."""
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in sorted(topics)),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    described = client.call(request, MetadataResponse).topics
    denied = [str(topic.name) for topic in described if topic.error_code is ErrorCode.topic_authorization_failed]
    if denied:
        raise describe_denied_error(client, denied)
    return {
        Partition(str(topic.name), int(row.partition_index)): ReplicaPlacement(
            leader=int(row.leader_id),
            replicas=tuple(int(node) for node in row.replica_nodes),
            in_sync=tuple(int(node) for node in row.isr_nodes),
            leader_epoch=int(row.leader_epoch),
        )
        for topic in described
        for row in topic.partitions
    }


def list_placements(client: ClusterClient, partitions: Collection[Partition]) -> dict[Partition, ReplicaPlacement]:
    """Unreachable if one does not exist."""
    placements = describe_placements(client, {p.topic for p in partitions})
    if missing := sorted(p for p in partitions if p not in placements):
        raise Unreachable(f"cluster {client.name}: {missing[0]} does not exist there now")
    return {p: placements[p] for p in partitions}


@dataclass(frozen=True, slots=True)
class TopicIds:
    ids: Mapping[str, frozenset[str]]
    unreachable_brokers: tuple[int, ...]
    """They may know any of the topics."""

    def format_unreachable(self) -> str:
        brokers = self.unreachable_brokers
        return f"{format_count(len(brokers), 'broker')} ({', '.join(map(str, brokers))}) gave no answer"

    def format_undecided(self, topic: str) -> str:
        return (
            f"topic {topic}: by the brokers that answer it was deleted or made anew, and {self.format_unreachable()}:"
            " nothing of it is copied until all do. Restore what is silent, or let the data plane reach it; a broker"
            " that its cluster does not list any more is not waited for"
        )


def fetch_topic_ids(client: ClusterClient, topics: Iterable[str]) -> TopicIds:
    """From every broker: one cut off from the controllers has old metadata. Slow ones count as unreachable."""
    topic_names, unreachable = sorted(topics), set[int]()
    ids_by_topic: dict[str, set[str]] = {name: set() for name in topic_names}
    for start in range(0, len(topic_names), _MAX_TOPICS_PER_REQUEST):
        request = MetadataRequest(
            topics=tuple(
                MetadataRequestTopic(topic_id=None, name=TopicName(name))
                for name in topic_names[start : start + _MAX_TOPICS_PER_REQUEST]
            ),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        calls = dict.fromkeys(client.brokers(), partial(_fetch_ids, request))
        for broker, result in call_brokers(client, calls).items():
            if isinstance(result, RemoteFault):
                unreachable.add(broker)
                continue
            for name, topic_id in result:
                ids_by_topic[name].add(topic_id)
    return TopicIds({name: frozenset(ids) for name, ids in ids_by_topic.items()}, tuple(sorted(unreachable)))


def _fetch_ids(request: MetadataRequest, connection: Connection) -> list[tuple[str, str]]:
    """A hundred responses are in memory at once."""
    return [
        (str(row.name), row.topic_id.hex)
        for row in connection.call(request, MetadataResponse).topics
        if row.topic_id and row.error_code in (ErrorCode.none, ErrorCode.leader_not_available)
    ]


def reassign(client: ClusterClient, replicas: Mapping[Partition, tuple[int, ...]]) -> None:
    """Returns when the controller accepted."""
    _alter_reassignments(client, replicas)


def cancel_reassignments(client: ClusterClient, partitions: Iterable[Partition]) -> None:
    """The only way to remove a replica that is being added before it is in sync."""
    _alter_reassignments(client, dict.fromkeys(partitions), expected=(ErrorCode.no_reassignment_in_progress,))


def _alter_reassignments(
    client: ClusterClient,
    replicas: Mapping[Partition, tuple[int, ...] | None],
    expected: Collection[ErrorCode] = (),
) -> None:
    def attempt(partitions: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        topics: dict[str, list[ReassignablePartition]] = {}
        for partition in partitions:
            nodes = replicas[partition]
            brokers = None if nodes is None else tuple(BrokerId(node) for node in nodes)
            row = ReassignablePartition(partition_index=i32(partition.index), replicas=brokers)
            topics.setdefault(partition.topic, []).append(row)
        request = AlterPartitionReassignmentsRequest(
            topics=tuple(ReassignableTopic(name=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items()),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=client.timeout_s)),
        )
        response = client.call_controller(request, AlterPartitionReassignmentsResponse)
        if response.error_code is not ErrorCode.none:
            raise make_fault(client, "partitions", _REASSIGN_ACTION, response.error_code, response.error_message)
        return {
            Partition(str(topic.name), int(row.partition_index)): (row.error_code, row.error_message)
            for topic in response.responses
            for row in topic.partitions
        }

    retry_per_key(client, _REASSIGN_ACTION, list(replicas), attempt, expected=expected)


_REASSIGN_ACTION: Final = "AlterPartitionReassignments (needs ALTER on the cluster)"


def elect_unclean_leaders(client: ClusterClient, partitions: Iterable[Partition]) -> None:
    """For offline partitions; loses what the replica lacks."""
    _elect_leaders(client, partitions, _UNCLEAN_ELECTION)


def elect_preferred_leaders(client: ClusterClient, partitions: Iterable[Partition]) -> None:
    """The first replica of each, which must be in sync."""
    _elect_leaders(client, partitions, _PREFERRED_ELECTION)


def _elect_leaders(client: ClusterClient, partitions: Iterable[Partition], election_type: i8) -> None:
    def attempt(remaining: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        topics: dict[str, list[i32]] = {}
        for partition in remaining:
            topics.setdefault(partition.topic, []).append(i32(partition.index))
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=tuple(TopicPartitions(topic=TopicName(t), partitions=tuple(i)) for t, i in topics.items()),
            timeout=i32Timedelta.parse(datetime.timedelta(seconds=client.timeout_s)),
        )
        response = client.call_controller(request, ElectLeadersResponse)
        if response.error_code is not ErrorCode.none:
            raise make_fault(client, "partitions", _ELECT_ACTION, response.error_code)
        return {
            Partition(str(topic.topic), int(row.partition_id)): (row.error_code, row.error_message)
            for topic in response.replica_election_results
            for row in topic.partition_result
        }

    retry_per_key(client, _ELECT_ACTION, list(partitions), attempt, expected=(ErrorCode.election_not_needed,))


_PREFERRED_ELECTION: Final = i8(0)
_UNCLEAN_ELECTION: Final = i8(1)
_ELECT_ACTION: Final = "ElectLeaders (needs ALTER on the cluster)"


def claim_in_sync(
    client: ClusterClient,
    leader: int,
    follower: int,
    ends: Mapping[Partition, Offset],
    leader_epochs: Mapping[Partition, int],
) -> None:
    """Fetches at these log ends in the name of `follower`: the leader then adds it to the in-sync replicas.

    Refused under other leader epochs than these. Without a broker epoch, like before KIP-903.
    """

    def attempt(partitions: list[Partition]) -> dict[Partition, tuple[ErrorCode, str | None]]:
        topics: dict[str, list[FetchPartition]] = {}
        for partition in partitions:
            row = FetchPartition(
                partition=i32(partition.index),
                current_leader_epoch=i32(leader_epochs[partition]),
                fetch_offset=i64(ends[partition]),
                log_start_offset=i64(0),
                partition_max_bytes=i32(1),
            )
            topics.setdefault(partition.topic, []).append(row)
        request = FetchRequest(
            replica_id=BrokerId(follower),
            max_wait=i32Timedelta.parse(datetime.timedelta(0)),
            min_bytes=i32(0),
            max_bytes=i32(1),
            isolation_level=_READ_UNCOMMITTED,
            session_epoch=_NO_FETCH_SESSION,
            topics=tuple(FetchTopic(topic=TopicName(t), partitions=tuple(rows)) for t, rows in topics.items()),
            forgotten_topics_data=(),
        )
        response = client.call(request, FetchResponse, leader)
        if response.error_code is not ErrorCode.none:
            raise make_fault(client, f"broker {leader}", _CLAIM_ACTION, response.error_code)
        return {
            Partition(str(topic.topic), int(row.partition_index)): (row.error_code, None)
            for topic in response.responses
            for row in topic.partitions
        }

    retry_per_key(client, _CLAIM_ACTION, list(ends), attempt)


_READ_UNCOMMITTED: Final = i8(0)
_NO_FETCH_SESSION: Final = i32(-1)
_CLAIM_ACTION: Final = "Fetch as a replica (needs CLUSTER_ACTION on the cluster)"


def wait_for_replicas(client: ClusterClient, replicas: Mapping[Partition, tuple[int, ...]]) -> None:
    """Exactly these, one leading. Unreachable on timeout."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        current = list_placements(client, replicas.keys())
        unfinished = [
            p
            for p, nodes in replicas.items()
            if set(current[p].replicas) != set(nodes) or current[p].leader not in nodes
        ]
        if not unfinished:
            return
        if time.monotonic() > deadline:
            raise Unreachable(
                f"cluster {client.name}, {unfinished[0]}: not yet held by its new replicas alone:"
                f" {', '.join(map(str, replicas[unfinished[0]]))}"
            )
        time.sleep(_PAUSE_S)


LEADER_THROTTLE: Final = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLE: Final = "follower.replication.throttled.replicas"
FOLLOWER_THROTTLE_RATE: Final = "follower.replication.throttled.rate"
_BROKER: Final = i8(4)
_DYNAMIC_BROKER_SOURCE: Final = 2
_SET: Final = i8(0)
_DELETE: Final = i8(1)


def list_throttled_topics(client: ClusterClient, topics: Iterable[str]) -> list[str]:
    topic_configs = describe_configs(client, topics)
    return sorted(
        t for t, configs in topic_configs.items() if {LEADER_THROTTLE, FOLLOWER_THROTTLE} & configs.overrides.keys()
    )


def throttle_partitions(client: ClusterClient, partitions: Iterable[Partition], leader: int, follower: int) -> None:
    """What `follower` fetches from `leader`, by the follower's rate."""
    indexes_by_topic: dict[str, list[int]] = {}
    for partition in partitions:
        indexes_by_topic.setdefault(partition.topic, []).append(partition.index)
    changes: Mapping[str, Mapping[str, str | None]] = {
        topic: {
            LEADER_THROTTLE: ",".join(f"{index}:{leader}" for index in sorted(indexes)),
            FOLLOWER_THROTTLE: ",".join(f"{index}:{follower}" for index in sorted(indexes)),
        }
        for topic, indexes in indexes_by_topic.items()
    }
    alter_configs(client, changes)


def unthrottle_topics(client: ClusterClient, topics: Iterable[str]) -> None:
    existing_topics = find_existing_topics(client, topics)
    alter_configs(client, {topic: {LEADER_THROTTLE: None, FOLLOWER_THROTTLE: None} for topic in existing_topics})


def fetch_throttle_rate(client: ClusterClient, broker: int) -> str | None:
    """None if not set."""
    resource = DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(broker), configuration_keys=(FOLLOWER_THROTTLE_RATE,)
    )
    result = client.call(DescribeConfigsRequest(resources=(resource,)), DescribeConfigsResponse, broker).results[0]
    if result.error_code is not ErrorCode.none:
        raise make_fault(client, f"broker {broker}", "DescribeConfigs", result.error_code, result.error_message)
    return next((config.value for config in result.configs if config.config_source == _DYNAMIC_BROKER_SOURCE), None)


def format_unthrottle_command(bootstrap: str, broker: int) -> str:
    options = (*format_option("--bootstrap-server", bootstrap), "--command-config", "ADMIN.properties")
    entity = ("--entity-type", "brokers", "--entity-name", str(broker))
    return format_shell_command(
        "kafka-configs.sh", *options, "--alter", *entity, "--delete-config", FOLLOWER_THROTTLE_RATE
    )


def set_throttle_rate(client: ClusterClient, broker: int, rate: str | None) -> None:
    """Bytes per second; None removes it. Only the broker itself accepts the change."""
    change = AlterableConfig(
        name=FOLLOWER_THROTTLE_RATE, config_operation=_DELETE if rate is None else _SET, value=rate
    )
    resource = AlterConfigsResource(resource_type=_BROKER, resource_name=str(broker), configs=(change,))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    row = client.call_controller(request, IncrementalAlterConfigsResponse, broker).responses[0]
    if row.error_code is not ErrorCode.none:
        action = "IncrementalAlterConfigs (needs ALTER_CONFIGS on the cluster)"
        raise make_fault(client, f"broker {broker}", action, row.error_code, row.error_message)

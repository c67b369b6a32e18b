"""Consumer groups: states, members, committed offsets; commits for empty groups."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kio.schema.delete_groups.v1.request import DeleteGroupsRequest
from kio.schema.delete_groups.v1.response import DeleteGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.list_groups.v4.request import ListGroupsRequest as ListGroupsV4
from kio.schema.list_groups.v4.response import ListGroupsResponse as ListedV4
from kio.schema.list_groups.v5.request import ListGroupsRequest as ListGroupsV5
from kio.schema.list_groups.v5.response import ListGroupsResponse as ListedV5
from kio.schema.offset_commit.v6.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v8.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.offset_fetch.v8.response import OffsetFetchResponseGroup
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.coordinators import CoordinatorMoving, call_coordinators
from mirror_core.kafka.epochs import LogPosition
from mirror_core.kafka.faults import make_fault, retry_per_key
from mirror_core.kafka.transient import RETRIABLE_CODES
from mirror_core.kafka.versions import fetch_api_versions
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.group_offsets import CONSUMER_OFFSETS_TOPIC as OFFSETS

_LIST_GROUPS_API_KEY: Final = 16
_GROUP_TYPES_VERSION: Final = 5
"""From here on ListGroups returns types (KIP-848)."""
_CLASSIC_KIND: Final = "classic"
_MAX_COORDINATOR_KEYS: Final = 500

OFFSET_KINDS: Final = frozenset({"classic", "consumer"})
"""Another consumer group can continue from their offsets."""
IDLE_STATES: Final = frozenset({"Empty", "Dead"})
"""Only then can an administrator commit."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    id: str
    kind: str
    """classic, consumer, share or streams."""
    state: str
    """Kafka's name: Empty, Stable..."""
    coordinator: int

    @property
    def is_idle(self) -> bool:
        return self.state in IDLE_STATES


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: Offset
    """Next offset to be read."""
    leader_epoch: int
    """-1 from administrators and old clients."""
    metadata: str
    """The application's; Kafka Streams stores its stream time there."""


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    committed: Mapping[Partition, CommittedOffset]
    unstable: frozenset[Partition]
    """Offset in an open transaction."""


def list_groups(client: ClusterClient) -> dict[str, ConsumerGroup]:
    """Needs DESCRIBE on the cluster or the groups. Waits for moving coordinators."""
    newest_version = fetch_api_versions(client).get(_LIST_GROUPS_API_KEY, (0, 0))[1]
    has_types = newest_version >= _GROUP_TYPES_VERSION

    def list_on_broker(broker: int) -> Any:
        # Two generated classes; the newer one has group types.
        response: Any = (
            client.call(ListGroupsV5(states_filter=(), types_filter=()), ListedV5, broker)
            if has_types
            else client.call(ListGroupsV4(states_filter=()), ListedV4, broker)
        )
        if response.error_code in RETRIABLE_CODES:
            raise CoordinatorMoving(f"cluster {client.name}, broker {broker}: ListGroups: {response.error_code.name}")
        if response.error_code is not ErrorCode.none:
            raise make_fault(client, f"broker {broker}", "ListGroups", response.error_code)
        return response.groups

    return {
        str(row.group_id): ConsumerGroup(
            str(row.group_id), row.group_type.lower() if has_types else _CLASSIC_KIND, row.group_state, broker
        )
        for broker, rows in call_coordinators(client, OFFSETS, list_on_broker).items()
        for row in rows
    }


def find_coordinators(client: ClusterClient, groups: Sequence[str]) -> dict[str, Coordinator]:
    """Also of groups that do not exist. Needs DESCRIBE on the groups."""
    requests = [
        FindCoordinatorRequest(key_type=i8(0), coordinator_keys=tuple(groups[start : start + _MAX_COORDINATOR_KEYS]))
        for start in range(0, len(groups), _MAX_COORDINATOR_KEYS)
    ]
    return {
        row.key: row
        for response in client.call_each(requests, FindCoordinatorResponse)
        for row in response.coordinators
    }


def find_coordinator(client: ClusterClient, group: str) -> int:
    deadline = time.monotonic() + client.timeout_s
    while True:
        coordinator = find_coordinators(client, [group])[group]
        if coordinator.error_code is ErrorCode.none:
            return int(coordinator.node_id)
        if coordinator.error_code not in RETRIABLE_CODES or time.monotonic() > deadline:
            raise make_fault(
                client, f"group {group}", "FindCoordinator", coordinator.error_code, coordinator.error_message
            )
        time.sleep(0.05)  # a new cluster creates __consumer_offsets now


def delete_group(client: ClusterClient, group: str) -> None:
    """A missing group counts as deleted. Needs DELETE on the group."""

    def attempt(groups: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        request = DeleteGroupsRequest(groups_names=tuple(GroupId(name) for name in groups))
        rows = client.call(request, DeleteGroupsResponse, find_coordinator(client, group)).results
        return {str(row.group_id): (row.error_code, None) for row in rows}

    retry_per_key(client, "DeleteGroups (needs DELETE)", [group], attempt, expected=(ErrorCode.group_id_not_found,))


def build_offset_fetch(partitions_by_group: Mapping[str, Iterable[Partition] | None]) -> OffsetFetchRequest:
    """One coordinator's groups; None: all partitions. Marks offsets of open transactions."""
    groups = tuple(
        OffsetFetchRequestGroup(group_id=GroupId(group), topics=_to_fetch_topics(partitions))
        for group, partitions in partitions_by_group.items()
    )
    return OffsetFetchRequest(groups=groups, require_stable=True)


def _to_fetch_topics(partitions: Iterable[Partition] | None) -> tuple[OffsetFetchRequestTopics, ...] | None:
    if partitions is None:
        return None
    topics: dict[str, list[i32]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    return tuple(OffsetFetchRequestTopics(name=TopicName(t), partition_indexes=tuple(i)) for t, i in topics.items())


def parse_group_offsets(client: ClusterClient, group_response: OffsetFetchResponseGroup) -> CommittedOffsets:
    committed, unstable = {}, set()
    for topic in group_response.topics:
        for row in topic.partitions:
            partition = Partition(str(topic.name), int(row.partition_index))
            if row.error_code is ErrorCode.unstable_offset_commit:
                unstable.add(partition)
            elif row.error_code is not ErrorCode.none:
                raise make_fault(client, f"group {group_response.group_id}, {partition}", "OffsetFetch", row.error_code)
            elif row.committed_offset >= 0:
                committed[partition] = CommittedOffset(
                    Offset(int(row.committed_offset)), int(row.committed_leader_epoch), row.metadata or ""
                )
    return CommittedOffsets(committed, frozenset(unstable))


def build_offset_commit(
    group: str,
    offsets: Mapping[Partition, tuple[Offset, str]],
    epochs: Mapping[LogPosition, int] = MappingProxyType({}),
) -> OffsetCommitRequest:
    """As an administrator, for a group without members; offsets next to be read.

    `epochs`: only certain ones of this cluster's log; Java consumers hang with a wrong one.
    """
    by_topic = dict[str, list[OffsetCommitRequestPartition]]()
    for partition, (offset, metadata) in sorted(offsets.items(), key=lambda item: item[0]):
        by_topic.setdefault(partition.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=i32(partition.index),
                committed_offset=i64(offset),
                committed_leader_epoch=i32(epochs.get(LogPosition(partition, offset), -1)),
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        topics=tuple(OffsetCommitRequestTopic(name=TopicName(t), partitions=tuple(p)) for t, p in by_topic.items()),
    )

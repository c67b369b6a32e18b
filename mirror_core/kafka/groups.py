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
from mirror_core.kafka.coordinators import Moving, ask_all
from mirror_core.kafka.epochs import Place
from mirror_core.kafka.faults import fault, settle
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.kafka.versions import api_versions
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.group_offsets import TOPIC as OFFSETS

_LIST_GROUPS_KEY: Final = 16
_TYPES_KNOWN_FROM: Final = 5
"""From here on ListGroups returns types (KIP-848)."""
_OF_CLASSIC: Final = "classic"
_SOUGHT_TOGETHER: Final = 500

OFFSET_KINDS: Final = frozenset({"classic", "consumer"})
"""Another consumer group can continue from their offsets."""
IDLE_STATES: Final = frozenset({"Empty", "Dead"})
"""Only then can an administrator commit."""


@dataclass(frozen=True, slots=True)
class Group:
    id: str
    kind: str
    """classic, consumer, share or streams."""
    state: str
    """Kafka's name: Empty, Stable..."""
    coordinator: int

    @property
    def idle(self) -> bool:
        return self.state in IDLE_STATES


@dataclass(frozen=True, slots=True)
class Committed:
    offset: Offset
    """Next offset to be read."""
    leader_epoch: int
    """-1 from administrators and old clients."""
    metadata: str
    """The application's; Kafka Streams stores its stream time there."""


@dataclass(frozen=True, slots=True)
class Offsets:
    committed: Mapping[Partition, Committed]
    unsettled: frozenset[Partition]
    """Offset in an open transaction."""


def list_groups(client: ClusterClient) -> dict[str, Group]:
    """Needs DESCRIBE on the cluster or the groups. Waits for moving coordinators."""
    newest = api_versions(client).get(_LIST_GROUPS_KEY, (0, 0))[1]
    typed = newest >= _TYPES_KNOWN_FROM

    def listed(broker: int) -> Any:
        # Two generated classes; the newer one has group types.
        answer: Any = (
            client.call(ListGroupsV5(states_filter=(), types_filter=()), ListedV5, broker)
            if typed
            else client.call(ListGroupsV4(states_filter=()), ListedV4, broker)
        )
        if answer.error_code in TRANSIENT:
            raise Moving(f"cluster {client.name}, broker {broker}: ListGroups: {answer.error_code.name}")
        if answer.error_code is not ErrorCode.none:
            raise fault(client, f"broker {broker}", "ListGroups", answer.error_code)
        return answer.groups

    return {
        str(row.group_id): Group(
            str(row.group_id), row.group_type.lower() if typed else _OF_CLASSIC, row.group_state, broker
        )
        for broker, rows in ask_all(client, OFFSETS, listed).items()
        for row in rows
    }


def find_coordinators(client: ClusterClient, groups: Sequence[str]) -> dict[str, Coordinator]:
    """Also of groups that do not exist. Needs DESCRIBE on the groups."""
    requests = [
        FindCoordinatorRequest(key_type=i8(0), coordinator_keys=tuple(groups[start : start + _SOUGHT_TOGETHER]))
        for start in range(0, len(groups), _SOUGHT_TOGETHER)
    ]
    return {row.key: row for one in client.call_each(requests, FindCoordinatorResponse) for row in one.coordinators}


def find_coordinator(client: ClusterClient, group: str) -> int:
    deadline = time.monotonic() + client.timeout_s
    while True:
        found = find_coordinators(client, [group])[group]
        if found.error_code is ErrorCode.none:
            return int(found.node_id)
        if found.error_code not in TRANSIENT or time.monotonic() > deadline:
            raise fault(client, f"group {group}", "FindCoordinator", found.error_code, found.error_message)
        time.sleep(0.05)  # a new cluster creates __consumer_offsets now


def delete_group(client: ClusterClient, group: str) -> None:
    """A missing group counts as deleted. Needs DELETE on the group."""

    def attempt(groups: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        request = DeleteGroupsRequest(groups_names=tuple(GroupId(one) for one in groups))
        rows = client.call(request, DeleteGroupsResponse, find_coordinator(client, group)).results
        return {str(row.group_id): (row.error_code, None) for row in rows}

    settle(client, "DeleteGroups (needs DELETE)", [group], attempt, expected=(ErrorCode.group_id_not_found,))


def fetch_request(wanted: Mapping[str, Iterable[Partition] | None]) -> OffsetFetchRequest:
    """One coordinator's groups; None: all partitions. Marks offsets of open transactions."""
    groups = tuple(OffsetFetchRequestGroup(group_id=GroupId(g), topics=_by_topic(p)) for g, p in wanted.items())
    return OffsetFetchRequest(groups=groups, require_stable=True)


def _by_topic(partitions: Iterable[Partition] | None) -> tuple[OffsetFetchRequestTopics, ...] | None:
    if partitions is None:
        return None
    topics: dict[str, list[i32]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    return tuple(OffsetFetchRequestTopics(name=TopicName(t), partition_indexes=tuple(i)) for t, i in topics.items())


def offsets_in(client: ClusterClient, answer: OffsetFetchResponseGroup) -> Offsets:
    committed, unsettled = {}, set()
    for topic in answer.topics:
        for row in topic.partitions:
            partition = Partition(str(topic.name), int(row.partition_index))
            if row.error_code is ErrorCode.unstable_offset_commit:
                unsettled.add(partition)
            elif row.error_code is not ErrorCode.none:
                raise fault(client, f"group {answer.group_id}, {partition}", "OffsetFetch", row.error_code)
            elif row.committed_offset >= 0:
                committed[partition] = Committed(
                    Offset(int(row.committed_offset)), int(row.committed_leader_epoch), row.metadata or ""
                )
    return Offsets(committed, frozenset(unsettled))


def commit_request(
    group: str, offsets: Mapping[Partition, tuple[Offset, str]], epochs: Mapping[Place, int] = MappingProxyType({})
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
                committed_leader_epoch=i32(epochs.get(Place(partition, offset), -1)),
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        topics=tuple(OffsetCommitRequestTopic(name=TopicName(t), partitions=tuple(p)) for t, p in by_topic.items()),
    )

"""Consumer groups: which there are, whether they have members, what they committed; and committing for empty ones."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.delete_groups.v1.request import DeleteGroupsRequest
from kio.schema.delete_groups.v1.response import DeleteGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.schema.list_groups.v4.request import ListGroupsRequest as ListGroupsV4
from kio.schema.list_groups.v4.response import ListGroupsResponse as ListedV4
from kio.schema.list_groups.v5.request import ListGroupsRequest as ListGroupsV5
from kio.schema.list_groups.v5.response import ListGroupsResponse as ListedV5
from kio.schema.offset_commit.v6.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic
from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import TRANSIENT, ClusterClient
from mirror_core.kafka.coordinators import Moving, ask_all
from mirror_core.kafka.faults import fault, settle
from mirror_core.kafka.versions import api_versions
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.group_offsets import TOPIC as OFFSETS

_LIST_GROUPS_KEY: Final = 16
_TYPES_KNOWN_FROM: Final = 5
"""Version of ListGroups that tells classic, consumer (KIP-848), share and streams groups apart."""
_OF_CLASSIC: Final = "classic"

OFFSET_KINDS: Final = frozenset({"classic", "consumer"})
"""Kinds of groups whose progress is in committed offsets that another group of consumers can take up."""
IDLE_STATES: Final = frozenset({"Empty", "Dead"})
"""States of a group without members; only to such a group may others commit."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its coordinator listed it."""

    id: str
    kind: str
    """classic, consumer, share or streams, in lower case."""
    state: str
    """Kafka's word: Empty, Stable, PreparingRebalance, Assigning..."""
    coordinator: int

    @property
    def idle(self) -> bool:
        return self.state in IDLE_STATES


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group committed for one partition."""

    offset: Offset
    """Next offset to be read."""
    leader_epoch: int
    """Of the log that the consumer read from; -1 when an administrator (or a sync) committed, or an old client."""
    metadata: str
    """The application's own note; Kafka Streams keeps its stream time there."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """All that a group committed."""

    committed: Mapping[Partition, Committed]
    unsettled: frozenset[Partition]
    """Partitions with an offset that belongs to an open transaction."""


def list_groups(client: ClusterClient) -> dict[str, Group]:
    """All groups that this principal may see, from every broker. Needs DESCRIBE on the cluster, or on the groups.

    Coordinators that are being elected or moved are waited for, up to the client's time limit.
    """
    newest = api_versions(client).get(_LIST_GROUPS_KEY, (0, 0))[1]
    typed = newest >= _TYPES_KNOWN_FROM

    def listed(broker: int) -> Any:
        # One of two generated classes with the same fields, but for the newer one's group type.
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


def find_coordinator(client: ClusterClient, group: str) -> int:
    """The broker that keeps this group, also when the group does not exist yet. Needs DESCRIBE on the group."""
    deadline = time.monotonic() + client.timeout_s
    while True:
        answer = client.call(FindCoordinatorRequest(key=group, key_type=i8(0)), FindCoordinatorResponse)
        if answer.error_code is ErrorCode.none:
            return int(answer.node_id)
        if answer.error_code not in TRANSIENT or time.monotonic() > deadline:
            raise fault(client, f"group {group}", "FindCoordinator", answer.error_code, answer.error_message)
        time.sleep(0.05)  # the first look at a new cluster makes it create __consumer_offsets


def delete_group(client: ClusterClient, group: str) -> None:
    """Delete it with all that it has committed; done already when it does not exist. Needs DELETE on the group."""

    def attempt(groups: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        request = DeleteGroupsRequest(groups_names=tuple(GroupId(one) for one in groups))
        rows = client.call(request, DeleteGroupsResponse, find_coordinator(client, group)).results
        return {str(row.group_id): (row.error_code, None) for row in rows}

    settle(client, "DeleteGroups (needs DELETE)", [group], attempt, expected=(ErrorCode.group_id_not_found,))


def fetch_request(group: str, partitions: Iterable[Partition] | None = None) -> OffsetFetchRequest:
    """For what a group committed, on these partitions or on all; offsets of open transactions are marked as such."""
    topics: dict[str, list[i32]] = {}
    for partition in partitions or ():
        topics.setdefault(partition.topic, []).append(i32(partition.index))
    rows = tuple(OffsetFetchRequestTopic(name=TopicName(t), partition_indexes=tuple(i)) for t, i in topics.items())
    return OffsetFetchRequest(group_id=GroupId(group), topics=None if partitions is None else rows, require_stable=True)


def offsets_in(client: ClusterClient, group: str, answer: OffsetFetchResponse) -> Offsets:
    """What an answer without an error says."""
    committed, unsettled = {}, set()
    for topic in answer.topics:
        for row in topic.partitions:
            partition = Partition(str(topic.name), int(row.partition_index))
            if row.error_code is ErrorCode.unstable_offset_commit:
                unsettled.add(partition)
            elif row.error_code is not ErrorCode.none:
                raise fault(client, f"group {group}, {partition}", "OffsetFetch", row.error_code)
            elif row.committed_offset >= 0:
                committed[partition] = Committed(
                    Offset(int(row.committed_offset)), int(row.committed_leader_epoch), row.metadata or ""
                )
    return Offsets(committed, frozenset(unsettled))


def commit_request(group: str, offsets: Mapping[Partition, tuple[Offset, str]]) -> OffsetCommitRequest:
    """As an administrator commits offsets (next to be read) with their metadata, for a group without members.

    The leader epoch is -1: with another cluster's epoch Java consumers hang.
    """
    none, by_topic = i32(-1), dict[str, list[OffsetCommitRequestPartition]]()
    for partition, (offset, metadata) in _sorted(offsets.items()):
        by_topic.setdefault(partition.topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=i32(partition.index),
                committed_offset=i64(offset),
                committed_leader_epoch=none,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        topics=tuple(OffsetCommitRequestTopic(name=TopicName(t), partitions=tuple(p)) for t, p in by_topic.items()),
    )


def _sorted(
    items: Iterable[tuple[Partition, tuple[Offset, str]]],
) -> list[tuple[Partition, tuple[Offset, str]]]:
    return sorted(items, key=lambda item: item[0])

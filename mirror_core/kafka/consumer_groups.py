"""Groups of every kind, share groups (KIP-932) included.

OffsetCommit takes one group, so commits are pipelined. Groups with moving coordinators are left out: the caller
retries.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from kio.schema.offset_commit.v6.response import OffsetCommitResponse
from kio.schema.offset_fetch.v8.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse, OffsetFetchResponseGroup
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions
from mirror_core.kafka.error_mapping import RETRIABLE_CODES, make_fault, retry_per_key
from mirror_core.kafka.fan_out import CoordinatorMoving, call_coordinators
from mirror_core.kafka.leader_epochs import LogPosition
from mirror_core.kafka.share_groups import alter_start_offsets, describe_start_offsets
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.group_records import CONSUMER_OFFSETS_TOPIC as OFFSETS

_LIST_GROUPS_API_KEY: Final = 16
_GROUP_TYPES_VERSION: Final = 5
"""From here on with types (KIP-848)."""
_CLASSIC_KIND: Final = "classic"
_MAX_COORDINATOR_KEYS: Final = 500
SHARE_KIND: Final = "share"
IDLE_STATES: Final = frozenset({"Empty", "Dead"})
"""Only then can an administrator commit."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    id: str
    kind: str
    """classic, consumer, share or streams."""
    state: str
    """Kafka's name: Empty, Stable…"""
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
    acknowledged_ahead: int | None = 0
    """Share groups: acknowledged records at or after `offset`. Brokers store the start offset later than the
    acknowledgements. None: brokers do not say.
    """
    acknowledged_until: Offset | None = None
    """Share groups: all records before this offset are acknowledged."""

    @property
    def progress(self) -> Offset:
        return Offset(self.offset + (self.acknowledged_ahead or 0))

    @property
    def resume_offset(self) -> Offset:
        """Where the group continues on another cluster: the latest offset that skips no unacknowledged record."""
        return max(self.offset, self.acknowledged_until or self.offset)


def count_redelivered(committed: Iterable[CommittedOffset]) -> int | None:
    """Acknowledged records that another cluster delivers again, from `resume_offset` on."""
    rows = list(committed)
    known = [c.progress - c.resume_offset for c in rows if c.acknowledged_ahead is not None]
    return sum(known) if len(known) == len(rows) else None


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


def has_offline_coordinators(client: ClusterClient) -> bool:
    """Listings leave out groups whose offsets are in an offline partition."""
    topic = client.metadata([OFFSETS]).topics.get(OFFSETS)
    return topic is not None and any(leader.broker < 0 for leader in topic.partitions.values())


def find_coordinators(client: ClusterClient, groups: Sequence[str]) -> dict[str, Coordinator]:
    """Also of groups that do not exist."""
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
    """A missing one counts as deleted."""

    def attempt(groups: list[str]) -> dict[str, tuple[ErrorCode, str | None]]:
        request = DeleteGroupsRequest(groups_names=tuple(GroupId(name) for name in groups))
        rows = client.call(request, DeleteGroupsResponse, find_coordinator(client, group)).results
        return {str(row.group_id): (row.error_code, None) for row in rows}

    retry_per_key(client, "DeleteGroups (needs DELETE)", [group], attempt, expected=(ErrorCode.group_id_not_found,))


def build_offset_fetch(partitions_by_group: Mapping[str, Iterable[Partition] | None]) -> OffsetFetchRequest:
    """One coordinator's groups; None: all partitions."""
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


OffsetsToCommit = Mapping[Partition, tuple[Offset, str]]
"""Next to be read; and metadata."""
COMMITTED: Final = ErrorCode.none.name
COMMITTED_WITHOUT_METADATA: Final = "committed without its metadata"
"""Metadata exceeds the brokers' offset.metadata.max.bytes."""
COMMITTED_RESULTS: Final = frozenset({COMMITTED, COMMITTED_WITHOUT_METADATA})
ACTIVE_GROUP_ERRORS: Final = frozenset(
    {"unknown_member_id", "illegal_generation", "rebalance_in_progress", "stale_member_epoch", "non_empty_group"}
)
_TOO_LARGE_TOGETHER: Final = frozenset({ErrorCode.invalid_commit_offset_size, ErrorCode.unknown_server_error})
"""A coordinator writes a request's offsets as one batch, which has to fit into max.message.bytes of its topic: by
default 300 offsets with the longest metadata. Brokers of 4.x then say only `unknown_server_error`.
"""
_METADATA_TOO_LARGE: Final = frozenset(
    {ErrorCode.offset_metadata_too_large.name, *(code.name for code in _TOO_LARGE_TOGETHER)}
)
_RETRY_PAUSE_S: Final = 0.05
_MAX_GROUPS_PER_REQUEST: Final = 50
"""Each may have thousands of partitions."""
_MAX_PARTITIONS_PER_REQUEST: Final = 20_000
"""With 4 KiB of metadata each, the response still fits."""
DENIED_GROUP_ERRORS: Final = frozenset({"group_authorization_failed", "topic_authorization_failed"})


@dataclass(frozen=True, slots=True)
class FetchedGroupOffsets:
    offsets: Mapping[str, CommittedOffsets]
    faults: Mapping[str, RemoteFault]


def fetch_group_offsets(client: ClusterClient, groups: Iterable[ConsumerGroup]) -> FetchedGroupOffsets:
    by_id = {group.id: group for group in groups}
    coordinators = {group.id: group.coordinator for group in by_id.values()}
    return GroupOffsetsClient(client, coordinators, list_share_groups(by_id.values())).fetch_until_known(
        dict.fromkeys(coordinators)
    )


def list_share_groups(groups: Iterable[ConsumerGroup]) -> frozenset[str]:
    return frozenset(group.id for group in groups if group.kind == SHARE_KIND)


class GroupOffsetsClient:
    def __init__(
        self,
        client: ClusterClient,
        coordinators: Mapping[str, int] = MappingProxyType({}),
        share_groups: Collection[str] = (),
    ) -> None:
        self._client = client
        self._share_groups = frozenset(share_groups)
        self._coordinators = dict(coordinators)

    def fetch(self, partitions_by_group: Mapping[str, Collection[Partition] | None]) -> dict[str, CommittedOffsets]:
        """Raises the first fault. None: all partitions."""
        offsets, faults = self._fetch(partitions_by_group, self._group_by_coordinator(partitions_by_group)[0])
        for error in faults.values():
            raise error
        return offsets

    def fetch_attempt(self, partitions_by_group: Mapping[str, Collection[Partition] | None]) -> FetchedGroupOffsets:
        """One attempt; faults hide no other group."""
        by_coordinator, denied = self._group_by_coordinator(partitions_by_group)
        offsets, faults = self._fetch(partitions_by_group, by_coordinator)
        for group, error_name in denied.items():
            faults[group] = make_fault(self._client, f"group {group}", "FindCoordinator", ErrorCode[error_name])
        return FetchedGroupOffsets(offsets, faults)

    def fetch_until_known(self, partitions_by_group: Mapping[str, Collection[Partition] | None]) -> FetchedGroupOffsets:
        offsets, faults = dict[str, CommittedOffsets](), dict[str, RemoteFault]()
        deadline = time.monotonic() + self._client.timeout_s
        while remaining := {
            group: partitions
            for group, partitions in partitions_by_group.items()
            if group not in offsets and group not in faults
        }:
            attempt = self.fetch_attempt(remaining)
            offsets |= attempt.offsets
            faults |= attempt.faults
            unanswered = remaining.keys() - offsets.keys() - faults.keys()
            if unanswered and time.monotonic() > deadline:
                reason = f"no coordinator answered for it within {self._client.timeout_s} s"
                faults |= {
                    group: RemoteFault(f"cluster {self._client.name}, group {group}: {reason}") for group in unanswered
                }
            elif unanswered:
                time.sleep(_RETRY_PAUSE_S)
        return FetchedGroupOffsets(offsets, faults)

    def _fetch(
        self, partitions_by_group: Mapping[str, Collection[Partition] | None], by_coordinator: Mapping[int, list[str]]
    ) -> tuple[dict[str, CommittedOffsets], dict[str, RemoteFault]]:
        offsets, faults = dict[str, CommittedOffsets](), dict[str, RemoteFault]()
        for broker, coordinated_groups in by_coordinator.items():
            groups = [group for group in coordinated_groups if group not in self._share_groups]
            if share_groups := [group for group in coordinated_groups if group in self._share_groups]:
                fetched = self._fetch_start_offsets(broker, share_groups)
                offsets |= fetched.offsets
                faults |= fetched.faults
            rows, unknown = self._fetch_rows(partitions_by_group, broker, groups)
            faults |= unknown
            for row in rows:
                group = str(row.group_id)
                if row.error_code in RETRIABLE_CODES:
                    self._coordinators.pop(group, None)
                elif row.error_code is not ErrorCode.none:
                    faults[group] = make_fault(self._client, f"group {group}", "OffsetFetch", row.error_code)
                else:
                    try:
                        offsets[group] = parse_group_offsets(self._client, row)
                    except RemoteFault as error:
                        faults[group] = error
        return offsets, faults

    def _fetch_start_offsets(self, broker: int, groups: list[str]) -> FetchedGroupOffsets:
        described = describe_start_offsets(self._client, broker, groups)
        for group in groups:
            if group not in described.starts and group not in described.faults:
                self._coordinators.pop(group, None)
        offsets = {
            group: CommittedOffsets(
                {
                    p: CommittedOffset(s.offset, -1, "", s.acknowledged_ahead, s.acknowledged_until)
                    for p, s in starts.items()
                },
                frozenset(),
            )
            for group, starts in described.starts.items()
        }
        return FetchedGroupOffsets(offsets, described.faults)

    def _fetch_rows(
        self, partitions_by_group: Mapping[str, Collection[Partition] | None], broker: int, groups: list[str]
    ) -> tuple[list[OffsetFetchResponseGroup], dict[str, RemoteFault]]:
        """In halves when a response fails: it may be too large."""
        requests = [
            build_offset_fetch({group: partitions_by_group[group] for group in share})
            for share in _split_groups(partitions_by_group, groups)
        ]
        try:
            responses = self._client.call_each(requests, OffsetFetchResponse, broker)
        except Unreachable as error:
            return [], dict.fromkeys(groups, error)
        except RemoteFault as error:
            if len(groups) == 1:
                return [], {groups[0]: error}
        else:
            return [row for response in responses for row in response.groups], {}
        half = len(groups) // 2
        first, second = (self._fetch_rows(partitions_by_group, broker, part) for part in (groups[:half], groups[half:]))
        return [*first[0], *second[0]], {**first[1], **second[1]}

    def commit(
        self,
        offsets_by_group: Mapping[str, OffsetsToCommit],
        epochs: Mapping[LogPosition, int] = MappingProxyType({}),
        share_groups: Collection[str] = (),
    ) -> dict[str, dict[Partition, str]]:
        """For groups without members; `COMMITTED`, `COMMITTED_WITHOUT_METADATA` or an error name each.

        Oversized metadata is dropped: without its offset a group would skip or reread everything. For `share_groups`
        the offsets are start offsets; brokers forget acknowledgements after them.
        """
        by_coordinator, denied = self._group_by_coordinator(offsets_by_group)
        results = {group: dict.fromkeys(offsets_by_group[group], result) for group, result in denied.items()}
        for broker, coordinated_groups in by_coordinator.items():
            groups = [group for group in coordinated_groups if group not in share_groups]
            for group in coordinated_groups:
                if group in share_groups:
                    starts = {p: offset for p, (offset, _) in offsets_by_group[group].items()}
                    results[group] = alter_start_offsets(self._client, broker, group, starts)
                    if results[group].keys() != starts.keys():
                        self._coordinators.pop(group, None)
            results |= self._commit(broker, {group: offsets_by_group[group] for group in groups}, epochs)
            oversized = {
                group: {
                    p: (offsets_by_group[group][p][0], "")
                    for p, result in results[group].items()
                    if result in _METADATA_TOO_LARGE and offsets_by_group[group][p][1]
                }
                for group in groups
            }
            oversized = {group: offsets for group, offsets in oversized.items() if offsets}
            for group, retried in self._commit(broker, oversized, epochs).items():
                results[group] = {p: result for p, result in results[group].items() if p not in oversized[group]}
                results[group] |= {
                    p: COMMITTED_WITHOUT_METADATA if result == COMMITTED else result for p, result in retried.items()
                }
        return results

    def _commit(
        self, broker: int, offsets_by_group: Mapping[str, OffsetsToCommit], epochs: Mapping[LogPosition, int]
    ) -> dict[str, dict[Partition, str]]:
        results = dict[str, dict[Partition, str]]((group, {}) for group in offsets_by_group)
        shares = list(offsets_by_group.items())
        while shares:
            requests = [build_offset_commit(group, offsets, epochs) for group, offsets in shares]
            responses = self._client.call_each(requests, OffsetCommitResponse, broker)
            attempted, shares = shares, []
            for (group, offsets), response in zip(attempted, responses, strict=True):
                codes = {
                    Partition(str(topic.name), int(row.partition_index)): row.error_code
                    for topic in response.topics
                    for row in topic.partitions
                }
                if not RETRIABLE_CODES.isdisjoint(codes.values()):
                    self._coordinators.pop(group, None)
                large = [p for p, code in codes.items() if code in _TOO_LARGE_TOGETHER] if len(offsets) > 1 else []
                half = (len(large) + 1) // 2
                shares += [
                    (group, {p: offsets[p] for p in partitions})
                    for partitions in (large[:half], large[half:])
                    if partitions
                ]
                results[group] |= {
                    p: code.name for p, code in codes.items() if code not in RETRIABLE_CODES and p not in large
                }
        return results

    def _group_by_coordinator(self, groups: Iterable[str]) -> tuple[dict[int, list[str]], dict[str, str]]:
        refused = dict[str, str]()
        group_ids = sorted(groups)
        unknown = [group for group in group_ids if group not in self._coordinators]
        for group, coordinator in find_coordinators(self._client, unknown).items():
            if coordinator.error_code is ErrorCode.none:
                self._coordinators[group] = int(coordinator.node_id)
            elif coordinator.error_code not in RETRIABLE_CODES:
                refused[group] = coordinator.error_code.name
        by_broker = defaultdict[int, list[str]](list)
        for group in group_ids:
            if group in self._coordinators:
                by_broker[self._coordinators[group]].append(group)
        return by_broker, refused


def _split_groups(
    partitions_by_group: Mapping[str, Collection[Partition] | None], groups: Iterable[str]
) -> list[list[str]]:
    shares, size = list[list[str]](), 0
    for group in groups:
        partition_count = len(partitions_by_group[group] or ())
        if (
            not shares
            or len(shares[-1]) == _MAX_GROUPS_PER_REQUEST
            or size + partition_count > _MAX_PARTITIONS_PER_REQUEST
        ):
            shares.append([])
            size = 0
        shares[-1].append(group)
        size += partition_count
    return shares

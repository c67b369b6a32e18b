"""Committed offsets of many groups.

OffsetFetch covers many groups; OffsetCommit takes one, so commits are pipelined. Groups with moving coordinators are
left out: the caller retries.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v6.response import OffsetCommitResponse
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse, OffsetFetchResponseGroup

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.epochs import LogPosition
from mirror_core.kafka.faults import make_fault
from mirror_core.kafka.groups import (
    CommittedOffsets,
    ConsumerGroup,
    build_offset_commit,
    build_offset_fetch,
    find_coordinators,
    parse_group_offsets,
)
from mirror_core.kafka.transient import RETRIABLE_CODES
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition

OffsetsToCommit = Mapping[Partition, tuple[Offset, str]]
"""Offset (next to be read) and metadata."""
COMMITTED: Final = ErrorCode.none.name
COMMITTED_WITHOUT_METADATA: Final = "committed without its metadata"
"""Metadata exceeds the brokers' offset.metadata.max.bytes."""
COMMITTED_RESULTS: Final = frozenset({COMMITTED, COMMITTED_WITHOUT_METADATA})
ACTIVE_GROUP_ERRORS: Final = frozenset(
    {"unknown_member_id", "illegal_generation", "rebalance_in_progress", "stale_member_epoch"}
)
"""The group has members."""
_TOO_LARGE_TOGETHER: Final = frozenset({ErrorCode.invalid_commit_offset_size, ErrorCode.unknown_server_error})
"""A coordinator writes the offsets of a request as one batch, which has to fit into max.message.bytes of its topic: by
default 300 offsets with the longest note. Brokers of 4.x say nothing better than `unknown_server_error` then."""
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
    coordinators = {group.id: group.coordinator for group in groups}
    return GroupOffsetsClient(client, coordinators).fetch_until_known(dict.fromkeys(coordinators))


class GroupOffsetsClient:
    def __init__(self, client: ClusterClient, coordinators: Mapping[str, int] = MappingProxyType({})) -> None:
        """Already known, by group."""
        self._client = client
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
        for broker, groups in by_coordinator.items():
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
        self, offsets_by_group: Mapping[str, OffsetsToCommit], epochs: Mapping[LogPosition, int] = MappingProxyType({})
    ) -> dict[str, dict[Partition, str]]:
        """For groups without members; `COMMITTED`, `COMMITTED_WITHOUT_METADATA` or an error name each.

        Needs READ on groups and topics. Oversized metadata is dropped: without its offset a group would skip or reread
        everything.
        """
        by_coordinator, denied = self._group_by_coordinator(offsets_by_group)
        results = {group: dict.fromkeys(offsets_by_group[group], result) for group, result in denied.items()}
        for broker, groups in by_coordinator.items():
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
            asked, shares = shares, []
            for (group, offsets), response in zip(asked, responses, strict=True):
                codes = {
                    Partition(str(topic.name), int(row.partition_index)): row.error_code
                    for topic in response.topics
                    for row in topic.partitions
                }
                if not RETRIABLE_CODES.isdisjoint(codes.values()):
                    self._coordinators.pop(group, None)
                large = [p for p, code in codes.items() if code in _TOO_LARGE_TOGETHER] if len(offsets) > 1 else []
                half = (len(large) + 1) // 2
                shares += [(group, {p: offsets[p] for p in some}) for some in (large[:half], large[half:]) if some]
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

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
from mirror_core.kafka.epochs import Place
from mirror_core.kafka.faults import fault
from mirror_core.kafka.groups import (
    Group,
    Offsets,
    commit_request,
    fetch_request,
    find_coordinators,
    offsets_in,
)
from mirror_core.kafka.transient import TRANSIENT
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition

Commits = Mapping[Partition, tuple[Offset, str]]
"""Offset (next to be read) and metadata."""
DONE: Final = ErrorCode.none.name
BARE: Final = "committed without its metadata"
"""Metadata exceeds the brokers' offset.metadata.max.bytes."""
TAKEN: Final = frozenset({DONE, BARE})
JOINED: Final = frozenset({"unknown_member_id", "illegal_generation", "rebalance_in_progress", "stale_member_epoch"})
"""The group has members."""
_TOO_LARGE_TOGETHER: Final = frozenset({ErrorCode.invalid_commit_offset_size, ErrorCode.unknown_server_error})
"""A coordinator writes the offsets of a request as one batch, which has to fit into max.message.bytes of its topic: by
default 300 offsets with the longest note. Brokers of 4.x say nothing better than `unknown_server_error` then."""
_TOO_LARGE: Final = frozenset({ErrorCode.offset_metadata_too_large.name, *(code.name for code in _TOO_LARGE_TOGETHER)})
_PAUSE_S: Final = 0.05
_ASKED_TOGETHER: Final = 50
"""Each may have thousands of partitions."""
_PARTITIONS: Final = 20_000
"""With 4 KiB of metadata each, the response still fits."""
NOT_ALLOWED: Final = frozenset({"group_authorization_failed", "topic_authorization_failed"})


@dataclass(frozen=True, slots=True)
class Fetched:
    offsets: Mapping[str, Offsets]
    faults: Mapping[str, RemoteFault]


def fetch_all(client: ClusterClient, groups: Iterable[Group]) -> Fetched:
    coordinators = {group.id: group.coordinator for group in groups}
    return GroupBatches(client, coordinators).fetch_known(dict.fromkeys(coordinators))


class GroupBatches:
    def __init__(self, client: ClusterClient, coordinators: Mapping[str, int] = MappingProxyType({})) -> None:
        """Already known, by group."""
        self._client = client
        self._coordinators = dict(coordinators)

    def fetch(self, wanted: Mapping[str, Collection[Partition] | None]) -> dict[str, Offsets]:
        """Raises the first fault. None: all partitions."""
        found, faults = self._fetch(wanted, self._by_coordinator(wanted)[0])
        for error in faults.values():
            raise error
        return found

    def fetch_now(self, wanted: Mapping[str, Collection[Partition] | None]) -> Fetched:
        """One attempt; faults hide no other group."""
        led, denied = self._by_coordinator(wanted)
        found, faults = self._fetch(wanted, led)
        for group, word in denied.items():
            faults[group] = fault(self._client, f"group {group}", "FindCoordinator", ErrorCode[word])
        return Fetched(found, faults)

    def fetch_known(self, wanted: Mapping[str, Collection[Partition] | None]) -> Fetched:
        found, faults = dict[str, Offsets](), dict[str, RemoteFault]()
        deadline = time.monotonic() + self._client.timeout_s
        while rest := {g: p for g, p in wanted.items() if g not in found and g not in faults}:
            now = self.fetch_now(rest)
            found |= now.offsets
            faults |= now.faults
            moving = rest.keys() - found.keys() - faults.keys()
            if moving and time.monotonic() > deadline:
                words = f"no coordinator answered for it within {self._client.timeout_s} s"
                faults |= {g: RemoteFault(f"cluster {self._client.name}, group {g}: {words}") for g in moving}
            elif moving:
                time.sleep(_PAUSE_S)
        return Fetched(found, faults)

    def _fetch(
        self, wanted: Mapping[str, Collection[Partition] | None], led: Mapping[int, list[str]]
    ) -> tuple[dict[str, Offsets], dict[str, RemoteFault]]:
        found, faults = dict[str, Offsets](), dict[str, RemoteFault]()
        for broker, groups in led.items():
            rows, unknown = self._rows(wanted, broker, groups)
            faults |= unknown
            for row in rows:
                group = str(row.group_id)
                if row.error_code in TRANSIENT:
                    self._coordinators.pop(group, None)
                elif row.error_code is not ErrorCode.none:
                    faults[group] = fault(self._client, f"group {group}", "OffsetFetch", row.error_code)
                else:
                    try:
                        found[group] = offsets_in(self._client, row)
                    except RemoteFault as error:
                        faults[group] = error
        return found, faults

    def _rows(
        self, wanted: Mapping[str, Collection[Partition] | None], broker: int, groups: list[str]
    ) -> tuple[list[OffsetFetchResponseGroup], dict[str, RemoteFault]]:
        """In halves when a response fails: it may be too large."""
        requests = [fetch_request({group: wanted[group] for group in share}) for share in _shares(wanted, groups)]
        try:
            answers = self._client.call_each(requests, OffsetFetchResponse, broker)
        except Unreachable as error:
            return [], dict.fromkeys(groups, error)
        except RemoteFault as error:
            if len(groups) == 1:
                return [], {groups[0]: error}
        else:
            return [row for answer in answers for row in answer.groups], {}
        half = len(groups) // 2
        first, second = (self._rows(wanted, broker, some) for some in (groups[:half], groups[half:]))
        return [*first[0], *second[0]], {**first[1], **second[1]}

    def commit(
        self, wanted: Mapping[str, Commits], epochs: Mapping[Place, int] = MappingProxyType({})
    ) -> dict[str, dict[Partition, str]]:
        """For groups without members; `COMMITTED`, `COMMITTED_WITHOUT_METADATA` or an error name each.

        Needs READ on groups and topics. Oversized metadata is dropped: without its offset a group would skip or reread
        everything.
        """
        led, denied = self._by_coordinator(wanted)
        said = {group: dict.fromkeys(wanted[group], word) for group, word in denied.items()}
        for broker, groups in led.items():
            said |= self._commit(broker, {group: wanted[group] for group in groups}, epochs)
            large = {
                group: {
                    p: (wanted[group][p][0], "")
                    for p, word in said[group].items()
                    if word in _TOO_LARGE and wanted[group][p][1]
                }
                for group in groups
            }
            large = {group: mine for group, mine in large.items() if mine}
            for group, words in self._commit(broker, large, epochs).items():
                said[group] = {p: word for p, word in said[group].items() if p not in large[group]}
                said[group] |= {p: BARE if word == DONE else word for p, word in words.items()}
        return said

    def _commit(
        self, broker: int, wanted: Mapping[str, Commits], epochs: Mapping[Place, int]
    ) -> dict[str, dict[Partition, str]]:
        said = dict[str, dict[Partition, str]]((group, {}) for group in wanted)
        shares = list(wanted.items())
        while shares:
            requests = [commit_request(group, mine, epochs) for group, mine in shares]
            answers = self._client.call_each(requests, OffsetCommitResponse, broker)
            asked, shares = shares, []
            for (group, mine), answer in zip(asked, answers, strict=True):
                codes = {
                    Partition(str(topic.name), int(row.partition_index)): row.error_code
                    for topic in answer.topics
                    for row in topic.partitions
                }
                if not TRANSIENT.isdisjoint(codes.values()):
                    self._coordinators.pop(group, None)
                large = [p for p, code in codes.items() if code in _TOO_LARGE_TOGETHER] if len(mine) > 1 else []
                half = (len(large) + 1) // 2
                shares += [(group, {p: mine[p] for p in some}) for some in (large[:half], large[half:]) if some]
                said[group] |= {p: code.name for p, code in codes.items() if code not in TRANSIENT and p not in large}
        return said

    def _by_coordinator(self, groups: Iterable[str]) -> tuple[dict[int, list[str]], dict[str, str]]:
        refused = dict[str, str]()
        wanted = sorted(groups)
        unknown = [group for group in wanted if group not in self._coordinators]
        for group, answer in find_coordinators(self._client, unknown).items():
            if answer.error_code is ErrorCode.none:
                self._coordinators[group] = int(answer.node_id)
            elif answer.error_code not in TRANSIENT:
                refused[group] = answer.error_code.name
        found = defaultdict[int, list[str]](list)
        for group in wanted:
            if group in self._coordinators:
                found[self._coordinators[group]].append(group)
        return found, refused


def _shares(wanted: Mapping[str, Collection[Partition] | None], groups: Iterable[str]) -> list[list[str]]:
    shares, size = list[list[str]](), 0
    for group in groups:
        more = len(wanted[group] or ())
        if not shares or len(shares[-1]) == _ASKED_TOGETHER or size + more > _PARTITIONS:
            shares.append([])
            size = 0
        shares[-1].append(group)
        size += more
    return shares

"""Committed offsets of many groups at once: requests to one coordinator travel behind each other.

What cannot be answered at this moment (a coordinator that moves, or loads) is left out: whoever asks, asks again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.schema.offset_commit.v6.response import OffsetCommitResponse
from kio.schema.offset_fetch.v7.response import OffsetFetchResponse
from kio.static.primitive import i8

from mirror_core.kafka.client import TRANSIENT, ClusterClient
from mirror_core.kafka.faults import DENIED, fault
from mirror_core.kafka.groups import Offsets, commit_request, fetch_request, offsets_in
from mirror_core.model.names import Offset, Partition

Commits = Mapping[Partition, tuple[Offset, str]]
"""Offsets (next to be read) to commit, with the application's own note."""
DONE: Final = ErrorCode.none.name
JOINED: Final = frozenset({"unknown_member_id", "illegal_generation", "rebalance_in_progress", "stale_member_epoch"})
"""The broker's words for a group that has members."""
NOT_ALLOWED: Final = frozenset({"group_authorization_failed", "topic_authorization_failed"})


class GroupBatches:
    """Asks about groups of one cluster, and commits for them. Remembers where their coordinators are."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._coordinators: dict[str, int] = {}

    def fetch(self, wanted: Mapping[str, Collection[Partition] | None]) -> dict[str, Offsets]:
        """What these groups committed on these partitions (None: on all), of groups that we may DESCRIBE."""
        found = dict[str, Offsets]()
        for broker, groups in self._by_coordinator(wanted)[0].items():
            requests = [fetch_request(group, wanted[group]) for group in groups]
            answers = self._client.call_each(requests, OffsetFetchResponse, broker)
            for group, answer in zip(groups, answers, strict=True):
                if answer.error_code in TRANSIENT:
                    self._coordinators.pop(group, None)
                elif answer.error_code is not ErrorCode.none:
                    raise fault(self._client, f"group {group}", "OffsetFetch", answer.error_code)
                else:
                    found[group] = offsets_in(self._client, group, answer)
        return found

    def commit(self, wanted: Mapping[str, Commits]) -> dict[str, dict[Partition, str]]:
        """Commit for groups without members; the broker's word for each partition, `DONE` when it took the commit.

        `unknown_member_id` and its like mean that the group has members. Needs READ on the groups and topics.
        """
        led, denied = self._by_coordinator(wanted)
        said = {group: dict.fromkeys(wanted[group], word) for group, word in denied.items()}
        for broker, groups in led.items():
            requests = [commit_request(group, wanted[group]) for group in groups]
            answers = self._client.call_each(requests, OffsetCommitResponse, broker)
            for group, answer in zip(groups, answers, strict=True):
                codes = {
                    Partition(str(topic.name), int(row.partition_index)): row.error_code
                    for topic in answer.topics
                    for row in topic.partitions
                }
                if not TRANSIENT.isdisjoint(codes.values()):
                    self._coordinators.pop(group, None)
                said[group] = {p: code.name for p, code in codes.items() if code not in TRANSIENT}
        return said

    def _by_coordinator(self, groups: Iterable[str]) -> tuple[dict[int, list[str]], dict[str, str]]:
        """The groups by the broker that keeps them; and those that we may not even ask about, with its word."""
        denied = dict[str, str]()
        wanted = sorted(groups)
        unknown = [group for group in wanted if group not in self._coordinators]
        requests = [FindCoordinatorRequest(key=group, key_type=i8(0)) for group in unknown]
        for group, answer in zip(unknown, self._client.call_each(requests, FindCoordinatorResponse), strict=True):
            if answer.error_code is ErrorCode.none:
                self._coordinators[group] = int(answer.node_id)
            elif answer.error_code in DENIED:
                denied[group] = answer.error_code.name
            elif answer.error_code not in TRANSIENT:
                raise fault(self._client, f"group {group}", "FindCoordinator", answer.error_code, answer.error_message)
        found = defaultdict[int, list[str]](list)
        for group in wanted:
            if group in self._coordinators:
                found[self._coordinators[group]].append(group)
        return found, denied

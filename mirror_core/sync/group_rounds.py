from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from mirror_core.decide.offsets import CommitOffset, decide_group_offset
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.group_batches import ACTIVE_GROUP_ERRORS, COMMITTED_RESULTS, GroupOffsetsClient
from mirror_core.kafka.groups import CommittedOffset, CommittedOffsets
from mirror_core.kafka.offsets import OffsetPoint, list_known_offsets
from mirror_core.model.errors import Unreachable
from mirror_core.model.groups import UncommittedGroupOffset
from mirror_core.model.logs import get_logger
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.group_commits import OffsetCommitter, OwnCommittedOffsets, format_refusal

_log = get_logger(__name__)

AHEAD_RETRY_S: Final = 1.0
ACTIVE_GROUP_RETRY_S: Final = 5.0

_ReadableRange = tuple[Offset, Offset]
"""Start, high watermark."""


@dataclass(slots=True)
class PendingOffsetCommits:
    """Commits of the source that the destination lacks; the newest of each partition."""

    committed: dict[str, dict[Partition, CommittedOffset]] = field(default_factory=dict)
    refusals: Mapping[tuple[str, str], UncommittedGroupOffset] = field(default_factory=dict)
    """Replaced, never changed: another thread reads it."""
    destination_ids: Mapping[str, str] = field(default_factory=dict)
    """Other topics of the same name are left alone."""
    _retry_at: dict[tuple[str, Partition], float] = field(default_factory=dict)
    _active_until: dict[str, float] = field(default_factory=dict)

    def set_committed(self, group: str, partition: Partition, committed: CommittedOffset | None) -> None:
        """Without an offset on the source the group keeps the one on the destination."""
        if committed is None:
            self.discard(group, partition)
        else:
            self.committed.setdefault(group, {})[partition] = committed
            self._retry_at.pop((group, partition), None)

    def discard(self, group: str, partition: Partition) -> None:
        offsets = self.committed.get(group, {})
        offsets.pop(partition, None)
        self._retry_at.pop((group, partition), None)
        if not offsets:
            self.committed.pop(group, None)

    def mark_refused(self, group: str, partition: Partition, reason: str, committed_offset: Offset | None) -> None:
        """Not tried again before the group commits again, or a sync looks at it."""
        self.discard(group, partition)
        name = str(partition)
        uncommitted = UncommittedGroupOffset(
            group=group, partition=name, reason=reason, destination_offset=committed_offset
        )
        if self.refusals.get((group, name)) != uncommitted:
            _log.info("not committed: %s", reason, group=group, partition=partition)
            self.refusals = {**self.refusals, (group, name): uncommitted}

    def clear_refusal(self, group: str, partition: Partition) -> None:
        if (key := (group, str(partition))) in self.refusals:
            self.refusals = {
                other_key: uncommitted for other_key, uncommitted in self.refusals.items() if other_key != key
            }

    def mark_active(self, group: str, until: float) -> None:
        self._active_until[group] = until

    def postpone(self, group: str, partition: Partition, until: float) -> None:
        self._retry_at[group, partition] = until

    def list_due(
        self, ranges: Mapping[Partition, _ReadableRange], now: float
    ) -> dict[str, dict[Partition, CommittedOffset]]:
        self._active_until = {group: until for group, until in self._active_until.items() if until > now}
        ready_by_group = dict[str, dict[Partition, CommittedOffset]]()
        for group, offsets in self.committed.items():
            ready = {
                partition: committed
                for partition, committed in offsets.items()
                if partition in ranges
                and (committed.offset <= ranges[partition][1] or now >= self._retry_at.get((group, partition), 0.0))
            }
            if ready and group not in self._active_until:
                ready_by_group[group] = ready
        return ready_by_group

    @property
    def partitions(self) -> frozenset[Partition]:
        return frozenset(partition for offsets in self.committed.values() for partition in offsets)


class OffsetCommitRounds:
    """Not thread-safe."""

    def __init__(
        self, destination: ClusterConfig, check_ownership: Callable[[], None], own_offsets: OwnCommittedOffsets
    ) -> None:
        self._resources = ExitStack()
        self._client = self._resources.enter_context(ClusterClient(destination))
        self._commits = self._resources.enter_context(OffsetCommitter(self._client, check_ownership))
        self._batches = GroupOffsetsClient(self._client)
        self._own_offsets = own_offsets
        self._pause_s = AHEAD_RETRY_S

    def commit_due(self, pending: PendingOffsetCommits) -> None:
        """Commit what is due, by the same rules as a sync."""
        if not pending.committed:
            return
        began = time.monotonic()
        ranges = self._list_ranges(pending)
        due = pending.list_due(ranges, began)
        fetched = self._batches.fetch_attempt({group: sorted(offsets) for group, offsets in due.items()})
        for group, fault in fetched.faults.items():
            if isinstance(fault, Unreachable):
                raise fault
            for partition in due[group]:
                pending.mark_refused(group, partition, str(fault), None)
        to_commit = self._select_commits(pending, due, fetched.offsets, ranges)
        for group, codes in (self._commits.commit_offsets(to_commit) if to_commit else {}).items():
            # Partitions without a code wait for the next round: the coordinator moves, or loads.
            for partition, code in codes.items():
                if code in COMMITTED_RESULTS:
                    self._own_offsets.record_offset(group, partition, to_commit[group][partition][0])
                    self._finish_or_postpone(pending, group, partition, ranges)
                elif code in ACTIVE_GROUP_ERRORS:
                    pending.discard(group, partition)
                    pending.mark_active(group, began + ACTIVE_GROUP_RETRY_S)
                else:
                    on_destination = fetched.offsets[group].committed.get(partition)
                    pending.mark_refused(
                        group, partition, format_refusal(code), on_destination.offset if on_destination else None
                    )
        # Many groups far ahead of a new copy must not keep the brokers busy.
        self._pause_s = max(AHEAD_RETRY_S, 5 * (time.monotonic() - began))

    def _select_commits(
        self,
        pending: PendingOffsetCommits,
        due: Mapping[str, Mapping[Partition, CommittedOffset]],
        destination_offsets: Mapping[str, CommittedOffsets],
        ranges: Mapping[Partition, _ReadableRange],
    ) -> dict[str, dict[Partition, tuple[Offset, str]]]:
        to_commit = dict[str, dict[Partition, tuple[Offset, str]]]()
        for group, offsets in destination_offsets.items():
            for partition, committed in due[group].items():
                if partition in offsets.unstable:  # an open transaction there commits it: next round
                    continue
                before = offsets.committed.get(partition)
                decision = decide_group_offset(
                    source=committed.offset,
                    start=ranges[partition][0],
                    end=ranges[partition][1],
                    destination=before.offset if before else None,
                    own_commits=self._own_offsets.find_known(group, partition),
                )
                if isinstance(decision, CommitOffset):
                    to_commit.setdefault(group, {})[partition] = (decision.offset, committed.metadata)
                elif before is not None and not decision.is_equal:
                    pending.mark_refused(group, partition, decision.reason, before.offset)
                elif before is not None:
                    self._own_offsets.record_offset(group, partition, before.offset)
                    self._finish_or_postpone(pending, group, partition, ranges)
        return to_commit

    def _finish_or_postpone(
        self,
        pending: PendingOffsetCommits,
        group: str,
        partition: Partition,
        ranges: Mapping[Partition, _ReadableRange],
    ) -> None:
        pending.clear_refusal(group, partition)
        if pending.committed[group][partition].offset > ranges[partition][1]:
            pending.postpone(group, partition, time.monotonic() + self._pause_s)
        else:
            pending.discard(group, partition)

    def _list_ranges(self, pending: PendingOffsetCommits) -> dict[Partition, _ReadableRange]:
        wanted = pending.partitions
        topics = self._client.metadata({partition.topic for partition in wanted}).topics
        copied_topics = {t: view for t, view in topics.items() if view.id == pending.destination_ids.get(t, view.id)}
        present = [p for p in wanted if p.topic in copied_topics and p.index in copied_topics[p.topic].partitions]
        ends = list_known_offsets(self._client, present, OffsetPoint.HIGH_WATERMARK, topics=copied_topics)
        starts = list_known_offsets(self._client, ends, OffsetPoint.START, topics=copied_topics)
        return {p: (starts[p], ends[p]) for p in starts.keys() & ends.keys()}

    def __enter__(self) -> OffsetCommitRounds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

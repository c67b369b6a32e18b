"""Repeats the source's group commits on the destination within a second.

Must not disturb copying: failures are counted, and following starts over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType, TracebackType
from typing import Final

from mirror_core.decide.filters import build_group_filter, build_topic_filter
from mirror_core.decide.group_coverage import date_uncommitted
from mirror_core.decide.loss_bound import find_agreed_ends
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import SHARE_KIND, CommittedOffset, GroupOffsetsClient, list_groups
from mirror_core.kafka.consumer_offsets_topic import ConsumerOffsetsFollower
from mirror_core.model.errors import Indeterminate, MirrorError, MissingPermission, Unreachable
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import GroupSyncTime, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.sync_state import GroupCoverage, UncommittedGroupOffset, UnsyncedGroups
from mirror_core.model.timing import now_ms
from mirror_core.state.lease import HeldLease
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync.offset_commits import (
    ACTIVE_GROUP_RETRY_S,
    AHEAD_RETRY_S,
    RECREATED_TOPIC_TEXT,
    UNCOPIED_TOPIC_TEXT,
    FollowedTopic,
    OffsetCommitRounds,
    OwnCommittedOffsets,
    PendingOffsetCommits,
)
from mirror_core.wire.fields import MalformedResponse
from mirror_core.wire.group_records import decode_offset_commit as decode_offset
from mirror_core.wire.records import Record

_log = get_logger(__name__)

_POLL_MS: Final = 250
_ROUND_INTERVAL_S: Final = 0.2
_SOURCE_TIMEOUT_S: Final = 5.0
"""What was read is still committed then."""
_EXCHANGE_INTERVAL_S: Final = 5.0
_BACKOFF_S: Final = (1.0, 30.0)
"""First, maximum."""
_DENIED_BACKOFF_S: Final = 60.0
_RELIST_INTERVAL_S: Final = 10.0
_PARTIAL_READ_S: Final = 60.0
_OWNERSHIP_WAIT_S: Final = 5.0
_MAX_OFFSETS_PER_WRITE: Final = 2_000
"""About 50 KiB every five seconds."""


class OffsetFollower:
    def __init__(self, link: MirrorLink, on_failure: Callable[[], None]) -> None:
        """`on_failure` runs on the follower's thread."""
        self._link = link
        self._on_failure = on_failure
        self._topic_filter = build_topic_filter(link.mirror)
        self._stop = threading.Event()
        self._ownership_shown, self._ownership_requested = threading.Event(), threading.Event()
        self._exchanged_at = float("-inf")
        self._recorded_topics: Mapping[str, FollowedTopic] = MappingProxyType({})
        """Replaced by the driver's thread when it changes, never changed."""
        self._unchecked: list[tuple[str, Partition, CommittedOffset | None]] = []
        """Their topics may have been recreated."""
        self._own: OwnCommittedOffsets | None = None
        self._written_refusals: Mapping[tuple[str, str], UncommittedGroupOffset] = MappingProxyType({})
        self._started = threading.Event()
        self._followed_until: GroupSyncTime | None = None
        self._written_followed_until: GroupSyncTime | None = None
        self.pending_commits = PendingOffsetCommits()
        self._thread = threading.Thread(target=self._run, name="groups", daemon=True)

    # -- on the driver's thread ----------------------------------------------------------------------------------

    def exchange_state(self, lease: HeldLease) -> None:
        """On the driver's thread: takes its state, and writes for the follower."""
        now = time.monotonic()
        if now < self._exchanged_at + _EXCHANGE_INTERVAL_S and not self._ownership_requested.is_set():
            return
        name = self._link.mirror.name
        mirror = lease.state.mirrors.get(name, self._link.mirror)
        if mirror != self._link.mirror:
            self._link = replace(self._link, mirror=mirror)  # the follower begins anew
        statuses = lease.state.partitions.get(name, {}).values()
        topics = {
            s.partition.topic: FollowedTopic(s.source_topic_id, s.destination_topic_id)
            for s in statuses
            if s.destination_topic_id and s.state not in (PartitionState.STOPPING, PartitionState.STOPPED)
        }
        if topics != self._recorded_topics:
            self._recorded_topics = topics
        self.pending_commits.agreed_ends = find_agreed_ends(
            lease.state.partitions.get(name, {}), lease.state.find_observation(name)
        )
        if self._own is None:
            self._own = OwnCommittedOffsets(self._link.mirror.name, lease.state)
        self._own.read(lease.state)
        requested, followed_until = self._ownership_requested.is_set(), self._followed_until
        if requested:
            lease.put(lease.lease)  # LostOwnership when the mirror is lost
            self._ownership_requested.clear()
            self._ownership_shown.set()
        if followed_until is not None and followed_until != self._written_followed_until:
            lease.put(followed_until)
            self._written_followed_until = followed_until
        self._write_progress(lease, self._own, _MAX_OFFSETS_PER_WRITE)
        self._exchanged_at = now
        self._started.set()

    def _write_progress(
        self, lease: HeldLease, own_offsets: OwnCommittedOffsets, max_offsets: int | None = None
    ) -> None:
        refused, recorded = self.pending_commits.refusals, lease.state.uncommitted_groups.get(self._link.mirror.name)
        if refused != self._written_refusals:
            recorded = recorded or UnsyncedGroups(mirror=self._link.mirror.name)
            others = [
                u for u in recorded.uncommitted if (u.group, u.partition) not in {*refused, *self._written_refusals}
            ]
            dated = date_uncommitted(refused.values(), recorded.uncommitted, now_ms())
            lease.put(replace(recorded, uncommitted=tuple(sorted([*others, *dated], key=_to_sort_key))))
            self._written_refusals = refused
        new_records = own_offsets.pop_unwritten(max_offsets)
        try:
            if new_records:
                lease.put(*new_records)
        except MirrorError:
            own_offsets.requeue(new_records)
            raise

    def write_final_progress(self, lease: HeldLease) -> None:
        if self._own is not None:
            self._write_progress(lease, self._own)

    def __enter__(self) -> OffsetFollower:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._started.set()
        self._thread.join(_ROUND_INTERVAL_S)  # it may hang on a silent cluster: do not wait

    # -- on the follower's thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        self._started.wait()
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except MissingPermission as error:
                pause = _DENIED_BACKOFF_S
                _log.info("groups are not followed, a sync has to look at each: %s", error)
            except Exception as error:  # noqa: BLE001 - copying goes on beside it, whatever this is
                failures = 1 if time.monotonic() - began > _DENIED_BACKOFF_S else failures + 1
                pause = min(_BACKOFF_S[0] * 2 ** (failures - 1), _BACKOFF_S[1])
                self._on_failure()
                error_text = error if isinstance(error, MirrorError) else type(error).__name__
                _log.info("groups are not followed for %g s: %s", pause, error_text)
            else:
                pause = _BACKOFF_S[0]
            self._commit_without_source(pause)

    def _follow(self) -> None:
        link = self._link
        self._topic_filter = build_topic_filter(link.mirror)
        with ExitStack() as resources:
            source = resources.enter_context(ClusterClient(self._link.source, timeout_s=_SOURCE_TIMEOUT_S))
            rounds = resources.enter_context(self._open_rounds())
            topic = resources.enter_context(ConsumerOffsetsFollower(source))
            if topic.is_absent:
                self._followed_until = _make_sync_time(link, now_ms())
                self._stop.wait(ACTIVE_GROUP_RETRY_S)
                return
            groups = _FollowedGroups(link, source)
            self._take_up_topics()
            for record in topic.poll(0):  # first: it shows whether we may read at all
                self._read_record(record, groups)
            self._fetch_all_committed(GroupOffsetsClient(source), groups.followed, self.pending_commits.topic_ids)
            self._release_checked(source)
            until_s = time.monotonic() + _PARTIAL_READ_S if topic.has_offline_partitions else float("inf")
            while not self._stop.is_set() and self._link is link and (began := time.monotonic()) < until_s:
                if new_topics := self._take_up_topics():
                    groups.refresh()
                    self._fetch_all_committed(GroupOffsetsClient(source), groups.followed, new_topics)
                for record in topic.poll(_POLL_MS):
                    self._read_record(record, groups)
                seen_at = topic.read_up_to_s()
                self._release_checked(source)
                rounds.commit_due(self.pending_commits)
                if seen_at is not None:
                    seen_at_ms = now_ms() - int((time.monotonic() - seen_at) * 1000)
                    self._followed_until = _make_sync_time(link, seen_at_ms)
                self._stop.wait(began + _ROUND_INTERVAL_S - time.monotonic())

    def _take_up_topics(self) -> frozenset[str]:
        """Returns new topics, whose commits were not read."""
        recorded = self._recorded_topics
        if recorded is self.pending_commits.topic_ids:
            return frozenset()
        new_topics = self.pending_commits.set_topics(recorded)
        self._unchecked = [row for row in self._unchecked if row[1].topic not in new_topics]
        return new_topics

    def _fetch_all_committed(self, batches: GroupOffsetsClient, groups: list[str], topics: Collection[str]) -> None:
        remaining, deadline = set(groups), time.monotonic() + _SOURCE_TIMEOUT_S
        while remaining and not self._stop.is_set() and time.monotonic() < deadline:
            fetched = batches.fetch_attempt(dict.fromkeys(remaining))
            for group, fault in fetched.faults.items():
                if isinstance(fault, Unreachable):
                    raise fault
                remaining.discard(group)  # a sync reports it
                _log.info("left to a sync: %s", fault, group=group)
            for group, offsets in fetched.offsets.items():
                remaining.discard(group)
                for partition, committed in offsets.committed.items():
                    if partition.topic in topics or partition.topic not in self.pending_commits.topic_ids:
                        self._queue_commit(group, partition, committed)
            if remaining:
                self._stop.wait(_ROUND_INTERVAL_S)

    def _commit_without_source(self, pause_s: float) -> None:
        deadline = time.monotonic() + pause_s
        try:
            with self._open_rounds() as rounds:
                while not self._stop.is_set():
                    self._take_up_topics()
                    rounds.commit_due(self.pending_commits)
                    if self._stop.wait(min(AHEAD_RETRY_S, deadline - time.monotonic())) or time.monotonic() >= deadline:
                        return
        except (MirrorError, OSError) as error:
            _log.debug("nothing committed meanwhile: %s", error)
            self._stop.wait(deadline - time.monotonic())

    def _read_record(self, record: Record, groups: _FollowedGroups) -> None:
        try:
            commit = decode_offset(record.key, record.value)
        except MalformedResponse as error:
            _log.info("a committed offset that cannot be read is left to the sync: %s", error)
            return
        if commit is None or not self._is_in_scope(commit.partition.topic) or commit.group not in groups:
            return
        value = commit.value
        self._queue_commit(
            commit.group,
            commit.partition,
            None if value is None else CommittedOffset(value.offset, value.leader_epoch, value.metadata),
        )

    def _queue_commit(self, group: str, partition: Partition, committed: CommittedOffset | None) -> None:
        if partition.topic in self.pending_commits.topic_ids:
            self._unchecked.append((group, partition, committed))
        elif self._is_in_scope(partition.topic):
            self._mark_uncopied(group, partition, committed, UNCOPIED_TOPIC_TEXT, GroupCoverage.SKIPPED)

    def _is_in_scope(self, topic: str) -> bool:
        return topic in self.pending_commits.topic_ids or topic in self._topic_filter

    def _mark_uncopied(
        self, group: str, partition: Partition, committed: CommittedOffset | None, reason: str, coverage: GroupCoverage
    ) -> None:
        assert self._own is not None
        if committed is None:
            self.pending_commits.clear_uncommitted(group, partition)
        else:
            own_offset = max(self._own.find_known(group, partition), default=None)
            self.pending_commits.mark_uncommitted(group, partition, reason, own_offset, coverage)

    def _release_checked(self, source: ClusterClient) -> None:
        """Offsets of a recreated topic mean nothing in the old copy."""
        if not self._unchecked:
            return
        topics_by_name = source.metadata({partition.topic for _, partition, _ in self._unchecked}).topics
        for group, partition, committed in self._unchecked:
            topic, ids = topics_by_name.get(partition.topic), self.pending_commits.topic_ids.get(partition.topic)
            if topic is None or ids is None:
                continue
            if topic.id == ids.source_id:
                self.pending_commits.set_committed(group, partition, committed)
            else:
                self._mark_uncopied(group, partition, committed, RECREATED_TOPIC_TEXT, GroupCoverage.REFUSED)
        self._unchecked = []

    def _open_rounds(self) -> OffsetCommitRounds:
        assert self._own is not None  # set in the driver's first exchange
        return OffsetCommitRounds(self._link.destination, self._check_still_owned, self._own)

    def _check_still_owned(self) -> None:
        self._ownership_shown.clear()
        self._ownership_requested.set()
        if not self._ownership_shown.wait(_OWNERSHIP_WAIT_S):
            raise Indeterminate(f"mirror {self._link.mirror.name}: its data plane does not show that it is ours")


def _make_sync_time(link: MirrorLink, synced_ms: int) -> GroupSyncTime:
    mirror = link.mirror
    return GroupSyncTime(mirror=mirror.name, synced_ms=synced_ms, followed=True, listed_by=mirror.group_filters)


def _to_sort_key(uncommitted: UncommittedGroupOffset) -> tuple[str, str]:
    return uncommitted.group, uncommitted.partition


class _FollowedGroups:
    def __init__(self, link: MirrorLink, source: ClusterClient) -> None:
        self._group_filter = build_group_filter(link.mirror)
        self._source = source
        self._known: dict[str, bool] = {}
        self._retry_at: dict[str, float] = {}
        self.refresh()

    def __contains__(self, group: str) -> bool:
        now = time.monotonic()
        if group in self._group_filter and group not in self._known and now >= self._retry_at.get(group, 0.0):
            self.refresh()
            if group not in self._known:  # deleted: its commits are still in the log
                self._retry_at[group] = now + _RELIST_INTERVAL_S
        return self._known.get(group, False)

    @property
    def followed(self) -> list[str]:
        return [group for group, followed in self._known.items() if followed]

    def refresh(self) -> None:
        kinds = {name: group.kind for name, group in list_groups(self._source).items() if name in self._group_filter}
        self._known.update({name: kind != SHARE_KIND for name, kind in kinds.items()})

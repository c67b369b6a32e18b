"""The driver's counts: written on its thread, read on any other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from types import MappingProxyType
from typing import Final, NamedTuple

from mirror_core.dataplane.epoch_planner import COPIED_STATES
from mirror_core.dataplane.heartbeat_writer import HeartbeatOutcome
from mirror_core.dataplane.source_monitor import SourceWatch
from mirror_core.decide.deletion_hold import EarlyDeletion
from mirror_core.decide.failover_readiness import FreshnessKind
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.task_messages import TaskReport
from mirror_core.state.lease import HeldLease

EPOCH_BUCKETS_S: Final = (1.0, 10.0, 29.0, 31.0, 35.0, 45.0, 60.0, 120.0)
"""Upper bounds. A healthy epoch takes 30 s and a moment for the last responses."""


class RetriedWork(StrEnum):
    TASK = "task"
    EPOCH = "epoch"
    PLAN = "plan"
    """A cluster did not respond: copying goes on with the last plan."""
    GROUPS = "groups"
    """Group commits could not be followed: syncs check each group."""
    RECEIPTS = "receipts"
    STATE = "state"
    """The state topic rejected writes: copying went on to the promised end, then waited."""
    VERIFICATION = "verification"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedCounts:
    offsets: int = 0
    records: int = 0
    gaps: int = 0
    """Offsets without a record, filled or seeded."""
    batches: int = 0
    bytes: int = 0


class NeverCopiedCount(NamedTuple):
    offsets: int = 0
    newest_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSnapshot:
    lease: Lease | None
    recorded: Mapping[Partition, PartitionStatus]
    copying: frozenset[Partition]
    paused_topics: frozenset[str]
    early_deletions: Mapping[Partition, EarlyDeletion]
    states: Mapping[tuple[str, PartitionState], int]
    throttle: int | None
    """Bytes per second from the source; None: no limit, or unknown."""
    known_ms: Mapping[FreshnessKind, int]
    never_copied: Mapping[str, NeverCopiedCount]
    filled: Mapping[str, int]
    """Offsets filled by markers, in the topic's partition with the most."""
    copied: Mapping[str, CopiedCounts]
    retries: Mapping[RetriedWork, int]
    epochs: tuple[int, ...]
    """Cumulative, by EPOCH_BUCKETS_S; the last one counts all."""
    epochs_s: float
    cpu_s: float
    heartbeats: Mapping[HeartbeatOutcome, int]
    heartbeat_ms: int | None
    observation: SourceObservation | None
    incomplete_since_ms: Mapping[Partition, int]
    """Since when partitions lack something observed on the source, open transactions included."""
    findings: int | None
    """Differences and unreadable places of the newest comparison; None: none was made."""


class Counters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease: HeldLease | None = None
        self._watch: SourceWatch | None = None
        self._recorded: Mapping[Partition, PartitionStatus] = {}
        self._copying: frozenset[Partition] = frozenset()
        self._paused_topics: frozenset[str] = frozenset()
        self._early_deletions: Mapping[Partition, EarlyDeletion] = {}
        self._states: Counter[tuple[str, PartitionState]] = Counter()
        self._throttle: int | None = None
        self._known_ms: Mapping[FreshnessKind, int] = {}
        self._never_copied: dict[str, NeverCopiedCount] = {}
        self._filled: dict[str, int] = {}
        self._copied: dict[str, CopiedCounts] = {}
        self._retries = Counter(dict.fromkeys(RetriedWork, 0))
        self._epochs = [0] * (len(EPOCH_BUCKETS_S) + 1)
        self._epochs_s = self._cpu_s = 0.0
        self._findings: int | None = None

    def set_lease(self, lease: HeldLease) -> None:
        self._lease = lease

    def set_watch(self, watch: SourceWatch) -> None:
        self._watch = watch

    def set_recorded(
        self,
        statuses: Iterable[PartitionStatus],
        throttle: int | None,
        known_ms: Mapping[FreshnessKind, int],
        paused_topics: Iterable[str] = (),
    ) -> None:
        status_list = tuple(statuses)
        with self._lock:
            self._paused_topics = frozenset(paused_topics)
            self._recorded = {status.partition: status for status in status_list}
            self._copying = frozenset(status.partition for status in status_list if status.state in COPIED_STATES)
            self._states = Counter((status.partition.topic, status.state) for status in status_list)
            self._never_copied = {}
            for topic, never_copied in (
                (status.partition.topic, status.never_copied) for status in status_list if status.never_copied
            ):
                before = self._never_copied.get(topic, NeverCopiedCount())
                newest_ms = max(before.newest_ms, never_copied.newest_ms)
                self._never_copied[topic] = NeverCopiedCount(before.offsets + never_copied.offsets, newest_ms)
            self._filled = {}
            for topic, filled in (
                (status.partition.topic, status.filled_gap_offsets)
                for status in status_list
                if status.filled_gap_offsets
            ):
                self._filled[topic] = max(filled, self._filled.get(topic, 0))
            self._throttle = throttle
            self._known_ms = known_ms

    def set_early_deletions(self, deletions: Mapping[Partition, EarlyDeletion]) -> None:
        with self._lock:
            self._early_deletions = deletions

    def count_retry(self, work: RetriedWork) -> None:
        with self._lock:
            self._retries[work] += 1

    def set_findings(self, findings: int) -> None:
        with self._lock:
            self._findings = findings

    def count_epoch(self, reports: Iterable[TaskReport], seconds: float) -> None:
        """`seconds`: from the epoch's planned start until all its reports arrived."""
        with self._lock:
            self._epochs[next((index for index, limit in enumerate(EPOCH_BUCKETS_S) if seconds <= limit), -1)] += 1
            self._epochs_s += seconds
            for report in reports:
                self._cpu_s += report.cpu_s
                self._retries[RetriedWork.TASK] += bool(report.retry_reason)
                for receipt in report.receipts:
                    before = self._copied.get(receipt.partition.topic, CopiedCounts())
                    self._copied[receipt.partition.topic] = CopiedCounts(
                        offsets=before.offsets + receipt.next - receipt.first,
                        records=before.records + receipt.records,
                        gaps=before.gaps + receipt.gaps,
                        batches=before.batches + receipt.batches,
                        bytes=before.bytes + receipt.bytes,
                    )

    def snapshot(self) -> CounterSnapshot:
        watch = self._watch
        with self._lock:
            return CounterSnapshot(
                lease=self._lease.lease if self._lease else None,
                recorded=self._recorded,
                copying=self._copying,
                paused_topics=self._paused_topics,
                early_deletions=self._early_deletions,
                states=MappingProxyType(self._states),
                throttle=self._throttle,
                known_ms=self._known_ms,
                never_copied=self._never_copied,
                filled=self._filled,
                copied=MappingProxyType(dict(self._copied)),
                retries=MappingProxyType(dict(self._retries)),
                epochs=tuple(accumulate(self._epochs)),
                epochs_s=self._epochs_s,
                cpu_s=self._cpu_s,
                heartbeats=MappingProxyType(dict(watch.heartbeat_writer.outcomes) if watch else {}),
                heartbeat_ms=watch.heartbeat_writer.newest_ms if watch else None,
                observation=watch.monitor.newest_observation if watch else None,
                incomplete_since_ms=watch.monitor.incomplete_since if watch else {},
                findings=self._findings,
            )

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

from mirror_core.dataplane.heart import Outcome
from mirror_core.dataplane.planning import COPIED
from mirror_core.dataplane.watch import Watch
from mirror_core.decide.ages import Known
from mirror_core.model.copying import TaskReport
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.sighting import Sighting
from mirror_core.state.lease import HeldLease

EPOCH_BUCKETS_S: Final = (1.0, 10.0, 29.0, 31.0, 35.0, 45.0, 60.0, 120.0)
"""Upper bounds. A healthy epoch takes 30 s and a moment for the last responses."""


class Retry(StrEnum):
    TASK = "task"
    EPOCH = "epoch"
    PLAN = "plan"
    """A cluster did not respond: copying goes on with the last plan."""
    GROUPS = "groups"
    """Group commits could not be followed: syncs check each group."""
    RECEIPTS = "receipts"
    STATE = "state"
    """The state topic rejected writes: copying went on to the promised end, then waited."""
    PROOF = "proof"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    offsets: int = 0
    records: int = 0
    gaps: int = 0
    """Offsets without a record, filled or seeded."""
    batches: int = 0
    bytes: int = 0


class Missed(NamedTuple):
    offsets: int = 0
    newest_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    lease: Lease | None
    copying: frozenset[Partition]
    states: Mapping[tuple[str, PartitionState], int]
    throttle: int | None
    """Bytes per second read from the source; None: no limit, or unknown."""
    known_ms: Mapping[Known, int]
    never_copied: Mapping[str, Missed]
    filled: Mapping[str, int]
    """Offsets filled by markers, of the topic's partition with the most."""
    copied: Mapping[str, Copied]
    retries: Mapping[Retry, int]
    epochs: tuple[int, ...]
    """Cumulative, by EPOCH_BUCKETS_S; the last one counts all."""
    epochs_s: float
    cpu_s: float
    heartbeats: Mapping[Outcome, int]
    heartbeat_ms: int | None
    sighting: Sighting | None
    unreached_ms: Mapping[Partition, int]
    """Since when partitions lack something observed on the source, open transactions included."""
    findings: int | None
    """Differences and unreadable places of the newest comparison; None: none was made."""


class Counters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lease: HeldLease | None = None
        self._watch: Watch | None = None
        self._copying: frozenset[Partition] = frozenset()
        self._states: Counter[tuple[str, PartitionState]] = Counter()
        self._throttle: int | None = None
        self._known_ms: Mapping[Known, int] = {}
        self._never_copied: dict[str, Missed] = {}
        self._filled: dict[str, int] = {}
        self._copied: dict[str, Copied] = {}
        self._retries = Counter(dict.fromkeys(Retry, 0))
        self._epochs = [0] * (len(EPOCH_BUCKETS_S) + 1)
        self._epochs_s = self._cpu_s = 0.0
        self._findings: int | None = None

    def holds(self, lease: HeldLease) -> None:
        self._lease = lease

    def watches(self, watch: Watch) -> None:
        self._watch = watch

    def recorded(
        self, statuses: Iterable[PartitionStatus], throttle: int | None, known_ms: Mapping[Known, int]
    ) -> None:
        known = tuple(statuses)
        with self._lock:
            self._copying = frozenset(s.partition for s in known if s.state in COPIED)
            self._states = Counter((s.partition.topic, s.state) for s in known)
            self._never_copied = {}
            for topic, one in ((s.partition.topic, s.never_copied) for s in known if s.never_copied):
                before = self._never_copied.get(topic, Missed())
                newest_ms = max(before.newest_ms, one.newest_ms)
                self._never_copied[topic] = Missed(before.offsets + one.offsets, newest_ms)
            self._filled = {}
            for topic, filled in ((s.partition.topic, s.filled) for s in known if s.filled):
                self._filled[topic] = max(filled, self._filled.get(topic, 0))
            self._throttle = throttle
            self._known_ms = known_ms

    def retried(self, what: Retry) -> None:
        with self._lock:
            self._retries[what] += 1

    def compared(self, findings: int) -> None:
        with self._lock:
            self._findings = findings

    def reported(self, reports: Iterable[TaskReport], seconds: float) -> None:
        """`seconds`: from the epoch's planned start until all its reports arrived."""
        with self._lock:
            self._epochs[next((i for i, limit in enumerate(EPOCH_BUCKETS_S) if seconds <= limit), -1)] += 1
            self._epochs_s += seconds
            for report in reports:
                self._cpu_s += report.cpu_s
                self._retries[Retry.TASK] += bool(report.retry)
                for receipt in report.receipts:
                    before = self._copied.get(receipt.partition.topic, Copied())
                    self._copied[receipt.partition.topic] = Copied(
                        offsets=before.offsets + receipt.next - receipt.first,
                        records=before.records + receipt.records,
                        gaps=before.gaps + receipt.gaps,
                        batches=before.batches + receipt.batches,
                        bytes=before.bytes + receipt.bytes,
                    )

    def snapshot(self) -> Snapshot:
        watch = self._watch
        with self._lock:
            return Snapshot(
                lease=self._lease.lease if self._lease else None,
                copying=self._copying,
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
                heartbeats=MappingProxyType(dict(watch.heart.outcomes) if watch else {}),
                heartbeat_ms=watch.heart.newest_ms if watch else None,
                sighting=watch.lookout.newest if watch else None,
                unreached_ms=watch.lookout.unreached if watch else {},
                findings=self._findings,
            )

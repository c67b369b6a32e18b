"""What the driver counts of its own work, for whoever watches: told on the driver's thread, read on any other."""

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
"""Upper bounds, seconds. A healthy epoch takes the 30 s that it is planned for, and a moment for the last answers."""


class Retry(StrEnum):
    """What is done again because it did not work out."""

    TASK = "task"
    """A task ended early though its partitions are well: a broker went away."""
    EPOCH = "epoch"
    """An epoch failed as a whole: its tasks could not be run, or their reports were lost."""
    PLAN = "plan"
    """A cluster could not be looked at: copying goes on with the last plan."""
    GROUPS = "groups"
    """What groups commit on the source could not be followed: copying goes on, and syncs look at each group."""
    RECEIPTS = "receipts"
    """An epoch's receipts could not be stored: copying goes on."""
    STATE = "state"
    """The state topic took nothing for a while: copying went on until the end that it knew, and then waited."""
    PROOF = "proof"
    """What is new could not be compared with the source, or not all of it: copying goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What the receipts of one topic say together, since this process began."""

    offsets: int = 0
    records: int = 0
    gaps: int = 0
    """Offsets that hold no record, filled or seeded."""
    batches: int = 0
    bytes: int = 0


class Missed(NamedTuple):
    """What the source deleted of one topic before it was copied."""

    offsets: int = 0
    newest_ms: int = 0
    """Wall clock when the last of them were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All counts at one moment."""

    lease: Lease | None
    """As last written by this process; None before it has one."""
    copying: frozenset[Partition]
    """Partitions that tasks are to copy."""
    states: Mapping[tuple[str, PartitionState], int]
    """Partitions by topic and recorded state."""
    throttle: int | None
    """Bytes per second that may be read from the source; None: no limit, or not known yet."""
    known_ms: Mapping[Known, int]
    """Wall clock of the newest of each, as the state topic has it."""
    never_copied: Mapping[str, Missed]
    """By topic, as the state topic has them; those without any are not in it."""
    filled: Mapping[str, int]
    """The same of offsets that markers have filled: the most of one of its partitions (`PartitionStatus.filled`)."""
    copied: Mapping[str, Copied]
    """By topic."""
    retries: Mapping[Retry, int]
    epochs: tuple[int, ...]
    """Epochs that took up to each of EPOCH_BUCKETS_S, and, last, all of them."""
    epochs_s: float
    """Seconds of all epochs together."""
    cpu_s: float
    """CPU seconds of the copying tasks."""
    heartbeats: Mapping[Outcome, int]
    """Seconds in which heartbeats were due, by what became of them; empty where none are made."""
    heartbeat_ms: int | None
    """Wall clock of the newest one that the source acknowledged."""
    sighting: Sighting | None
    """The newest look at the source."""
    unreached_ms: Mapping[Partition, int]
    """Partitions that lack something of what was seen on the source, open transactions included, and since when."""
    findings: int | None
    """Differences, and places that cannot be read, that the newest comparison beside the copying found; None: none was
    made."""


class Counters:
    """The counts of one data plane. Thread-safe."""

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
        """This process runs the data plane from now on; the lease is read whenever somebody asks."""
        self._lease = lease

    def watches(self, watch: Watch) -> None:
        """What watches its source; read whenever somebody asks."""
        self._watch = watch

    def recorded(
        self, statuses: Iterable[PartitionStatus], throttle: int | None, known_ms: Mapping[Known, int]
    ) -> None:
        """All of the mirror's partitions, its throttle (bytes per second), and how old is what a failover would rely
        on, as the state topic has them now."""
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
        """Something is done again."""
        with self._lock:
            self._retries[what] += 1

    def compared(self, findings: int) -> None:
        """A comparison beside the copying found so many differences."""
        with self._lock:
            self._findings = findings

    def reported(self, reports: Iterable[TaskReport], seconds: float) -> None:
        """An epoch has ended; `seconds` from its planned start until all its reports were there."""
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
        """All counts now."""
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

"""Positions, lags and rates from tasks' datagrams, and the end of what tasks have reported.

Only below that end every record is known to be the mirror's own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirror_core.copy.driver_messages import CurrentCopies
from mirror_core.copy.task_datagrams import Datagram
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import TaskReport
from mirror_core.model.timing import MAX_FRESH_AGE_S, read_steady_s

RATE_WINDOW_S: Final = 5.0
_MAX_OFFSET: Final = 2**63 - 1
_MAX_SAMPLES: Final = 32
"""Source ends that a position has yet to pass: 5 kB per lagging partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFigures:
    position: Offset
    """Next offset to copy."""
    source_end: Offset | None
    """Last stable offset."""
    lag: int | None
    time_lag_s: float | None
    """Since the source's end passed the position. At most a second too long, and in a long backlog an eighth of the
    time for which it grew.
    """
    source_age_s: float | None
    """Since the source's end was seen; None: never."""
    to_seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressTotals:
    partitions: int
    unknown: int
    """Without a known lag; `lag` leaves them out."""
    lag: int
    seeding: int
    to_seed: int
    worst_time_lag_s: float | None
    records: int
    bytes: int
    records_per_s: float
    bytes_per_s: float


def sum_totals(all_totals: Iterable[ProgressTotals]) -> ProgressTotals:
    totals_list = tuple(all_totals)
    return ProgressTotals(
        partitions=sum(totals.partitions for totals in totals_list),
        unknown=sum(totals.unknown for totals in totals_list),
        lag=sum(totals.lag for totals in totals_list),
        seeding=sum(totals.seeding for totals in totals_list),
        to_seed=sum(totals.to_seed for totals in totals_list),
        worst_time_lag_s=max(
            (totals.worst_time_lag_s for totals in totals_list if totals.worst_time_lag_s is not None), default=None
        ),
        records=sum(totals.records for totals in totals_list),
        bytes=sum(totals.bytes for totals in totals_list),
        records_per_s=sum(totals.records_per_s for totals in totals_list),
        bytes_per_s=sum(totals.bytes_per_s for totals in totals_list),
    )


@dataclass(slots=True)
class _TrackedPartition:
    reported_at: float
    epoch: int
    position: int
    to_seed: int = 0
    source_end: int | None = None
    source_seen_at: float | None = None
    ends: deque[tuple[int, float, float]] = field(default_factory=deque)
    """(source end, first seen, last seen), growing; only the first may be at or below the position."""
    sample_interval_s: float = 0.0


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    task: int
    t: float
    """Seconds, by a clock that is steady within one task of one epoch."""
    rows: list[tuple[str, int, int, int | None, int, int, int, int]]
    """[topic, partition, next, source_end, records, bytes, offsets to seed, known from]; records and bytes count
    from the epoch's start.
    """


TASK_PROGRESS_DECODER: Final = msgspec.json.Decoder(TaskProgress)
"""Made at import: two threads that meet a type for the first time crash msgspec (0.22)."""


class ProgressTracker:
    """Thread-safe. Times are by this machine's steady clock: a task's fastest datagram tells how its clock differs."""

    def __init__(self, clock: Callable[[], float] = read_steady_s) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tracked: dict[Partition, _TrackedPartition] = {}
        self._counts: dict[tuple[int, int, Partition], tuple[int, int]] = {}
        self._clocks_behind_s: dict[tuple[int, int], float] = {}
        """By epoch and task: how far its clock is behind this one, and how long its fastest datagram took."""
        self._newest_epoch = 0
        self._records = self._bytes = 0
        self._history: deque[tuple[float, int, int]] = deque([(clock(), 0, 0)])

    def handle(self, datagram: Datagram, copies: CurrentCopies | None = None) -> bytes:
        self.update(TASK_PROGRESS_DECODER.decode(datagram.body), datagram.epoch, copies)
        return b""

    def update(self, task_progress: TaskProgress, epoch: int, copies: CurrentCopies | None = None) -> None:
        with self._lock:
            reported_at = self._to_own_clock(task_progress, epoch)
            for topic, index, position, end, records, byte_count, to_seed, _ in task_progress.rows:
                partition = Partition(topic, index)
                if copies is None or copies.includes(partition, epoch):
                    self._update_position(partition, epoch, reported_at, position, end, to_seed)
                self._update_counts((epoch, task_progress.task, partition), records, byte_count)
            self._forget_old_epochs(epoch)
            self._sample_counts()

    def forget(self, partitions: Iterable[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                self._tracked.pop(partition, None)

    def partitions(self) -> Mapping[Partition, PartitionFigures]:
        now = self._clock()
        with self._lock:
            return {partition: _to_figures(tracked, now) for partition, tracked in self._tracked.items()}

    def totals(self) -> ProgressTotals:
        now = self._clock()
        with self._lock:
            self._sample_counts()
            figures = [_to_figures(tracked, now) for tracked in self._tracked.values()]
            window_start, records, byte_count = self._history[0]
            elapsed = max(now - window_start, 1e-3)
            return ProgressTotals(
                partitions=len(figures),
                unknown=sum(partition_figures.lag is None for partition_figures in figures),
                lag=sum(partition_figures.lag or 0 for partition_figures in figures),
                seeding=sum(bool(partition_figures.to_seed) for partition_figures in figures),
                to_seed=sum(partition_figures.to_seed or 0 for partition_figures in figures),
                worst_time_lag_s=max(
                    (
                        partition_figures.time_lag_s
                        for partition_figures in figures
                        if partition_figures.time_lag_s is not None
                    ),
                    default=None,
                ),
                records=self._records,
                bytes=self._bytes,
                records_per_s=(self._records - records) / elapsed,
                bytes_per_s=(self._bytes - byte_count) / elapsed,
            )

    def _to_own_clock(self, task_progress: TaskProgress, epoch: int) -> float:
        key, behind_s = (epoch, task_progress.task), self._clock() - task_progress.t
        self._clocks_behind_s[key] = min(behind_s, self._clocks_behind_s.get(key, behind_s))
        return task_progress.t + self._clocks_behind_s[key]

    def _update_position(
        self, partition: Partition, epoch: int, reported_at: float, position: int, end: int | None, to_seed: int
    ) -> None:
        tracked = self._tracked.get(partition)
        if tracked is None:
            tracked = self._tracked[partition] = _TrackedPartition(reported_at, epoch, position, to_seed)
        elif (epoch, reported_at) < (tracked.epoch, tracked.reported_at):
            return  # late, or of an older epoch
        else:
            if position < tracked.position:
                # Recreated or truncated: old ends are void.
                tracked.ends.clear()
                tracked.source_end = tracked.source_seen_at = None
            tracked.reported_at, tracked.epoch, tracked.position, tracked.to_seed = (
                reported_at,
                epoch,
                position,
                to_seed,
            )
        if end is not None:  # None: a new task does not know it yet
            tracked.source_end, tracked.source_seen_at = end, reported_at
            _add_source_end(tracked, end, reported_at)

    def _update_counts(self, key: tuple[int, int, Partition], records: int, byte_count: int) -> None:
        if key[0] < self._newest_epoch - 1 and key not in self._counts:
            return  # a task that still compares logs: already counted
        before_records, before_bytes = self._counts.get(key, (0, 0))
        if records < before_records or byte_count < before_bytes:
            before_records = before_bytes = 0  # another attempt counts from 0
        self._records += records - before_records
        self._bytes += byte_count - before_bytes
        self._counts[key] = (records, byte_count)

    def _forget_old_epochs(self, epoch: int) -> None:
        if epoch > self._newest_epoch:
            self._newest_epoch = epoch
            self._counts = {key: count for key, count in self._counts.items() if key[0] >= epoch - 1}
            self._clocks_behind_s = {key: s for key, s in self._clocks_behind_s.items() if key[0] >= epoch - 1}

    def _sample_counts(self) -> None:
        now = self._clock()
        if now - self._history[-1][0] >= 0.25 or len(self._history) == 1:
            self._history.append((now, self._records, self._bytes))
        while len(self._history) > 2 and self._history[1][0] <= now - RATE_WINDOW_S:
            self._history.popleft()


class ReportedEnds:
    """Up to where tasks' reports are contiguous (next offset). Thread-safe.

    Records that another producer appends under the mirror's producer id leave a hole between two reports.
    """

    def __init__(self, ends: Mapping[Partition, int], copies: CurrentCopies | None = None) -> None:
        """`ends`: of an earlier process. The first task of each partition compares what follows."""
        self._copies = copies or CurrentCopies()
        self._lock = threading.Lock()
        self._ends = dict(ends)
        self._unchecked = set(ends)
        self._ranges_after_hole: dict[Partition, tuple[int, int]] = {}
        self._epochs: dict[Partition, int] = {}

    def handle(self, datagram: Datagram) -> None:
        for topic, index, end, *_, known_from in TASK_PROGRESS_DECODER.decode(datagram.body).rows:
            self.add(Partition(topic, index), datagram.epoch, known_from, end)

    def add(self, partition: Partition, epoch: int, known_from: int, end: int) -> None:
        """A task of this epoch knows [known_from, end). What is no range of offsets says nothing."""
        if not 0 <= known_from <= end <= _MAX_OFFSET:
            return
        with self._lock:
            if not self._copies.includes(partition, epoch):
                return
            is_newest = epoch >= self._epochs.get(partition, 0)
            self._epochs[partition] = max(epoch, self._epochs.get(partition, 0))
            known_end = self._ends.setdefault(partition, end)
            if is_newest and end < known_end:
                known_end = self._ends[partition] = end  # the destination lost its log's end, or it is copied anew
            later = self._ranges_after_hole.pop(partition, None)
            if known_from > known_end:
                reported = (known_from, end)
                self._ranges_after_hole[partition] = reported if later is None else _merge_if_adjacent(later, reported)
                return
            known_end = max(known_end, end)
            if later is not None and later[0] > known_end:
                self._ranges_after_hole[partition] = later
            elif later is not None:
                known_end = max(known_end, later[1])
            self._ends[partition] = known_end

    def add_reports(self, epoch: int, reports: Iterable[TaskReport]) -> None:
        """Datagrams may be lost, and not every task has a way to send them."""
        for report in reports:
            ends = {receipt.partition: receipt.next for receipt in report.receipts}
            for aligned in report.aligned:
                if aligned.known_from is not None and aligned.partition in ends:
                    self.add(aligned.partition, epoch, aligned.known_from, ends[aligned.partition])

    def take_comparison_start(self, partition: Partition) -> Offset | None:
        """Offset from which a new task must compare before it copies; None: it need not. Call once for each task."""
        with self._lock:
            is_first_task = partition in self._unchecked
            self._unchecked.discard(partition)
            must_compare = is_first_task or partition in self._ranges_after_hole
            return Offset(self._ends[partition]) if must_compare else None

    def forget(self, partitions: Iterable[Partition]) -> None:
        """They are copied anew."""
        with self._lock:
            for partition in partitions:
                self._unchecked.discard(partition)
                self._ends.pop(partition, None)
                self._ranges_after_hole.pop(partition, None)

    def get_ends(self) -> dict[Partition, int]:
        with self._lock:
            return dict(self._ends)


def _merge_if_adjacent(earlier: tuple[int, int], later: tuple[int, int]) -> tuple[int, int]:
    first, second = sorted((earlier, later))
    return (first[0], max(first[1], second[1])) if second[0] <= first[1] else first


def _add_source_end(tracked: _TrackedPartition, end: int, seen_at: float) -> None:
    ends = tracked.ends
    if ends and ends[-1][0] == end:
        ends[-1] = (end, ends[-1][1], seen_at)
    else:
        if ends and ends[-1][0] > end:
            ends.clear()  # unclean election, or a recreated topic
        if len(ends) > 1 and seen_at - ends[-2][2] < tracked.sample_interval_s:
            ends.pop()  # keep the newest, and others this far apart
        ends.append((end, seen_at, seen_at))
    while len(ends) > 1 and ends[1][0] <= tracked.position:
        ends.popleft()
    if len(ends) <= 2:
        tracked.sample_interval_s = 0.0  # it has caught up
    elif len(ends) > _MAX_SAMPLES:
        # Drop every other one, except the oldest and the newest: the lag becomes a little too long.
        tracked.ends = deque([ends[0], *list(ends)[2:-1:2], ends[-1]])
        tracked.sample_interval_s = 2 * (seen_at - ends[0][2]) / _MAX_SAMPLES


def _to_figures(tracked: _TrackedPartition, now: float) -> PartitionFigures:
    is_fresh = tracked.source_seen_at is not None and now - tracked.source_seen_at <= MAX_FRESH_AGE_S
    end = Offset(tracked.source_end) if is_fresh and tracked.source_end is not None else None
    lag = max(0, end - tracked.position) if end is not None else None
    return PartitionFigures(
        position=Offset(tracked.position),
        source_end=end,
        lag=lag,
        time_lag_s=None if lag is None else _time_lag_s(tracked, now),
        source_age_s=None if tracked.source_seen_at is None else max(0.0, now - tracked.source_seen_at),
        to_seed=tracked.to_seed if now - tracked.reported_at <= MAX_FRESH_AGE_S else None,
    )


def _time_lag_s(tracked: _TrackedPartition, now: float) -> float | None:
    first_end, _, last_seen = tracked.ends[0]
    if len(tracked.ends) == 1 and first_end <= tracked.position:
        return 0.0
    return max(0.0, now - last_seen) if first_end <= tracked.position else None

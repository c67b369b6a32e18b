"""Tracks tasks' progress from their datagrams: positions, lags, rates."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mirror_core.copy.datagrams import Letter
from mirror_core.model.clock import FRESH_S
from mirror_core.model.names import Offset, Partition

RATE_WINDOW_S: Final = 5.0
_MAX_SAMPLES: Final = 32
"""Source ends that a position has yet to pass: 5 kB per partition that lags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    position: Offset
    """Next offset to copy."""
    source_end: Offset | None
    """Last stable offset; None: unknown."""
    lag: int | None
    time_lag_s: float | None
    """Seconds since the source's end passed the position; None: unknown. At most a second too long, and in
    a long backlog an eighth of the time for which it grew."""
    source_seen_s: float | None
    to_seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    partitions: int
    unknown: int
    """Partitions without a known lag; `lag` leaves them out."""
    lag: int
    seeding: int
    to_seed: int
    worst_time_lag_s: float | None
    records: int
    bytes: int
    records_per_s: float
    bytes_per_s: float


def added(several: Iterable[Totals]) -> Totals:
    parts = tuple(several)
    return Totals(
        partitions=sum(t.partitions for t in parts),
        unknown=sum(t.unknown for t in parts),
        lag=sum(t.lag for t in parts),
        seeding=sum(t.seeding for t in parts),
        to_seed=sum(t.to_seed for t in parts),
        worst_time_lag_s=max((t.worst_time_lag_s for t in parts if t.worst_time_lag_s is not None), default=None),
        records=sum(t.records for t in parts),
        bytes=sum(t.bytes for t in parts),
        records_per_s=sum(t.records_per_s for t in parts),
        bytes_per_s=sum(t.bytes_per_s for t in parts),
    )


@dataclass(slots=True)
class _Seen:
    at: float
    epoch: int
    position: int
    to_seed: int = 0
    source_end: int | None = None
    source_seen: float | None = None
    ends: deque[tuple[int, float, float]] = field(default_factory=deque)
    """(source end, first seen, last seen), growing; only the first may be at or below the position."""
    apart_s: float = 0.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    task: int
    t: float
    """Wall clock, seconds."""
    rows: list[tuple[str, int, int, int | None, int, int, int]]
    """[topic, partition, next, source_end, records, bytes, offsets to seed]; records and bytes count from
    the epoch's start."""


TOLD: Final = msgspec.json.Decoder(Snapshot)
"""Made at import: two threads that meet a type for the first time crash msgspec (0.22)."""


class Progress:
    """Thread-safe. Times are wall clock: tasks on other machines stamp what they send."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[Partition, _Seen] = {}
        self._counts: dict[tuple[int, int, Partition], tuple[int, int]] = {}
        self._newest_epoch = 0
        self._records = self._bytes = 0
        self._history: deque[tuple[float, int, int]] = deque([(clock(), 0, 0)])

    def hear(self, letter: Letter) -> bytes:
        self.take(TOLD.decode(letter.body), letter.epoch)
        return b""

    def take(self, told: Snapshot, epoch: int) -> None:
        with self._lock:
            for topic, index, position, end, records, size, to_seed in told.rows:
                partition = Partition(topic, index)
                self._place(partition, epoch, told.t, position, end, to_seed)
                self._count((epoch, told.task, partition), records, size)
            self._forget_old(epoch)
            self._mark()

    def drop(self, keep: frozenset[Partition]) -> None:
        with self._lock:
            for partition in self._seen.keys() - keep:
                del self._seen[partition]

    def partitions(self) -> Mapping[Partition, Figures]:
        now = self._clock()
        with self._lock:
            return {partition: _figures(seen, now) for partition, seen in self._seen.items()}

    def totals(self) -> Totals:
        now = self._clock()
        with self._lock:
            self._mark()
            figures = [_figures(seen, now) for seen in self._seen.values()]
            since, records, size = self._history[0]
            elapsed = max(now - since, 1e-3)
            return Totals(
                partitions=len(figures),
                unknown=sum(f.lag is None for f in figures),
                lag=sum(f.lag or 0 for f in figures),
                seeding=sum(bool(f.to_seed) for f in figures),
                to_seed=sum(f.to_seed or 0 for f in figures),
                worst_time_lag_s=max((f.time_lag_s for f in figures if f.time_lag_s is not None), default=None),
                records=self._records,
                bytes=self._bytes,
                records_per_s=(self._records - records) / elapsed,
                bytes_per_s=(self._bytes - size) / elapsed,
            )

    def _place(self, partition: Partition, epoch: int, at: float, position: int, end: int | None, to_seed: int) -> None:
        seen = self._seen.get(partition)
        if seen is None:
            seen = self._seen[partition] = _Seen(at, epoch, position, to_seed)
        elif (epoch, at) < (seen.epoch, seen.at):
            return  # late, or of an older epoch
        else:
            if position < seen.position:
                # Recreated or truncated: old ends are void.
                seen.ends.clear()
                seen.source_end = seen.source_seen = None
            seen.at, seen.epoch, seen.position, seen.to_seed = at, epoch, position, to_seed
        if end is not None:  # None: a new task does not know it yet
            seen.source_end, seen.source_seen = end, at
            _sample(seen, end, at)

    def _count(self, key: tuple[int, int, Partition], records: int, size: int) -> None:
        if key[0] < self._newest_epoch - 1 and key not in self._counts:
            return  # a task that still compares logs: already counted
        before_records, before_size = self._counts.get(key, (0, 0))
        if records < before_records or size < before_size:
            before_records = before_size = 0  # another attempt counts from 0
        self._records += records - before_records
        self._bytes += size - before_size
        self._counts[key] = (records, size)

    def _forget_old(self, epoch: int) -> None:
        if epoch > self._newest_epoch:
            self._newest_epoch = epoch
            self._counts = {key: count for key, count in self._counts.items() if key[0] >= epoch - 1}

    def _mark(self) -> None:
        now = self._clock()
        if now - self._history[-1][0] >= 0.25 or len(self._history) == 1:
            self._history.append((now, self._records, self._bytes))
        while len(self._history) > 2 and self._history[1][0] <= now - RATE_WINDOW_S:
            self._history.popleft()


def _sample(seen: _Seen, end: int, at: float) -> None:
    ends = seen.ends
    if ends and ends[-1][0] == end:
        ends[-1] = (end, ends[-1][1], at)
    else:
        if ends and ends[-1][0] > end:
            ends.clear()  # unclean election, or a recreated topic
        if len(ends) > 1 and at - ends[-2][2] < seen.apart_s:
            ends.pop()  # keep the newest, and others this far apart
        ends.append((end, at, at))
    while len(ends) > 1 and ends[1][0] <= seen.position:
        ends.popleft()
    if len(ends) <= 2:
        seen.apart_s = 0.0  # it has caught up
    elif len(ends) > _MAX_SAMPLES:
        # Drop every other one, except the oldest and the newest: the lag becomes a little too long.
        seen.ends = deque([ends[0], *list(ends)[2:-1:2], ends[-1]])
        seen.apart_s = 2 * (at - ends[0][2]) / _MAX_SAMPLES


def _figures(seen: _Seen, now: float) -> Figures:
    fresh = seen.source_seen is not None and now - seen.source_seen <= FRESH_S
    end = Offset(seen.source_end) if fresh and seen.source_end is not None else None
    lag = max(0, end - seen.position) if end is not None else None
    return Figures(
        position=Offset(seen.position),
        source_end=end,
        lag=lag,
        time_lag_s=None if lag is None else _time_lag_s(seen, now),
        source_seen_s=seen.source_seen,
        to_seed=seen.to_seed if now - seen.at <= FRESH_S else None,
    )


def _time_lag_s(seen: _Seen, now: float) -> float | None:
    first_end, _, last_seen = seen.ends[0]
    if len(seen.ends) == 1 and first_end <= seen.position:
        return 0.0
    return max(0.0, now - last_seen) if first_end <= seen.position else None

"""What the tasks of a data plane say of themselves, every second, by datagram: positions, lags, rates, live."""

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
"""Of the ends of one partition that its position has yet to pass: 5 kB of each that is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One partition, as its task last reported it."""

    position: Offset
    """Next offset to copy."""
    source_end: Offset | None
    """The source's last stable offset; None when it isn't known now."""
    lag: int | None
    """Offsets between both; None when the source's end isn't known now."""
    time_lag_s: float | None
    """Seconds since the source's end passed the position; None when nobody saw it pass. At most a second too long, and
    while a long backlog is copied an eighth of the time for which it grew."""
    source_seen_s: float | None
    """Wall clock, in seconds, when the source's end was last seen, however long ago; None when it never was."""
    to_seed: int | None
    """Offsets to be seeded before anything is copied; None when that isn't known now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """All partitions together."""

    partitions: int
    unknown: int
    """Partitions whose lag isn't known now; `lag` is the others'."""
    lag: int
    seeding: int
    """Partitions that are being seeded, since their source begins late; its end isn't asked for meanwhile."""
    to_seed: int
    """Offsets that these still lack."""
    worst_time_lag_s: float | None
    """The longest time lag that is known; None when none is."""
    records: int
    """Copied since this listener began."""
    bytes: int
    records_per_s: float
    """Over the last five seconds."""
    bytes_per_s: float


def added(several: Iterable[Totals]) -> Totals:
    """The totals of several mirrors as one."""
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
    """What is known of one partition, and the source ends that its position has yet to pass."""

    at: float
    epoch: int
    position: int
    to_seed: int = 0
    source_end: int | None = None
    source_seen: float | None = None
    ends: deque[tuple[int, float, float]] = field(default_factory=deque)
    """(source end, first seen, last seen), growing; only the first may be at or below the position."""
    apart_s: float = 0.0
    """Between two of them that are kept."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A task's datagram."""

    task: int
    t: float
    """Wall clock, seconds."""
    rows: list[tuple[str, int, int, int | None, int, int, int]]
    """[topic, partition, next, source_end, records, bytes, offsets to be seeded]; records and bytes are counted from
    the start of the task's epoch."""


TOLD: Final = msgspec.json.Decoder(Snapshot)
"""Made by the thread that imports this: two that meet a type for the first time crash msgspec (0.22)."""


class Progress:
    """Keeps the newest word on each partition. Thread-safe.

    Times are wall clock: tasks on other machines stamp what they send.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[Partition, _Seen] = {}
        self._counts: dict[tuple[int, int, Partition], tuple[int, int]] = {}
        self._newest_epoch = 0
        self._records = self._bytes = 0
        self._history: deque[tuple[float, int, int]] = deque([(clock(), 0, 0)])

    def hear(self, letter: Letter) -> bytes:
        """Take in one datagram, which has no answer. Raises msgspec's error for nonsense."""
        self.take(TOLD.decode(letter.body), letter.epoch)
        return b""

    def take(self, told: Snapshot, epoch: int) -> None:
        """Take in what a task of this epoch says."""
        with self._lock:
            for topic, index, position, end, records, size, to_seed in told.rows:
                partition = Partition(topic, index)
                self._place(partition, epoch, told.t, position, end, to_seed)
                self._count((epoch, told.task, partition), records, size)
            self._forget_old(epoch)
            self._mark()

    def drop(self, keep: frozenset[Partition]) -> None:
        """Forget all partitions but these: the others are no longer this mirror's, or have failed."""
        with self._lock:
            for partition in self._seen.keys() - keep:
                del self._seen[partition]

    def partitions(self) -> Mapping[Partition, Figures]:
        """The newest figures of every partition."""
        now = self._clock()
        with self._lock:
            return {partition: _figures(seen, now) for partition, seen in self._seen.items()}

    def totals(self) -> Totals:
        """All partitions together, now."""
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
            return  # overtaken on its way, or the last word of an epoch whose successor has spoken already
        else:
            if position < seen.position:
                # Recreated, or cut: what was seen of the old log says nothing about this one.
                seen.ends.clear()
                seen.source_end = seen.source_seen = None
            seen.at, seen.epoch, seen.position, seen.to_seed = at, epoch, position, to_seed
        if end is not None:  # a task that has just begun does not know it yet; what its predecessor saw grows old
            seen.source_end, seen.source_seen = end, at
            _sample(seen, end, at)

    def _count(self, key: tuple[int, int, Partition], records: int, size: int) -> None:
        if key[0] < self._newest_epoch - 1 and key not in self._counts:
            return  # a task that has outlasted its epoch for a look: what it had copied was counted, and is forgotten
        before_records, before_size = self._counts.get(key, (0, 0))
        if records < before_records or size < before_size:
            before_records = before_size = 0  # another attempt of the same task: it counts from 0 again
        self._records += records - before_records
        self._bytes += size - before_size
        self._counts[key] = (records, size)

    def _forget_old(self, epoch: int) -> None:
        if epoch > self._newest_epoch:
            self._newest_epoch = epoch
            self._counts = {key: count for key, count in self._counts.items() if key[0] >= epoch - 1}

    def _mark(self) -> None:
        """Keep the counts of the last few seconds, four a second, for the rates."""
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
            ends.clear()  # the source went back: an unclean election, or another topic of that name
        if len(ends) > 1 and at - ends[-2][2] < seen.apart_s:
            ends.pop()  # the newest one is always kept, the others only so far apart
        ends.append((end, at, at))
    while len(ends) > 1 and ends[1][0] <= seen.position:
        ends.popleft()
    if len(ends) <= 2:
        seen.apart_s = 0.0  # it has caught up
    elif len(ends) > _MAX_SAMPLES:
        # Every other one goes, but for the oldest and the newest: what remains answers a little too much.
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
    """Since the last moment at which the source's end was at or below the position."""
    first_end, _, last_seen = seen.ends[0]
    if len(seen.ends) == 1 and first_end <= seen.position:
        return 0.0
    return max(0.0, now - last_seen) if first_end <= seen.position else None

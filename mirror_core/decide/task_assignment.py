"""Assigns partitions to tasks, shares a mirror's throttle, and decides an epoch's length.

A comparison that an epoch's end cuts short starts over in the next, which is twice as long, within a limit: tasks that
lost their driver may write until their epoch ends. Changes of the configuration wait for the next epoch.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.names import Partition
from mirror_core.model.text import format_bytes

_by_name: Final = attrgetter("topic", "index")
"""Comparing fifty thousand partitions directly costs half a second."""


def assign_partitions(lags: Mapping[Partition, int], tasks: int) -> tuple[tuple[Partition, ...], ...]:
    """At most `tasks` nonempty assignments: the longest lag (offsets) goes to the least loaded task.

    Partitions without lag count a little.
    """
    heap: list[tuple[int, int]] = [(0, number) for number in range(min(tasks, len(lags)))]
    chosen: list[list[Partition]] = [[] for _ in heap]
    for partition, lag in sorted(lags.items(), key=lambda item: (-item[1], *_by_name(item[0]))):
        load, number = heapq.heappop(heap)
        chosen[number].append(partition)
        heapq.heappush(heap, (load + max(lag, 0) + 100, number))
    return tuple(tuple(sorted(partitions, key=_by_name)) for partitions in chosen)


def rotate_partitions(ordered: Sequence[Partition], shift: int) -> tuple[Partition, ...]:
    start = shift % len(ordered) if ordered else 0
    return tuple(dict.fromkeys(chain.from_iterable(zip(ordered, [*ordered[start:], *ordered[:start]], strict=True))))


MIN_FETCH_BYTES: Final = 64 << 10


BYTE_UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "": 1,
        "B": 1,
        "kB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KiB": 2**10,
        "MiB": 2**20,
        "GiB": 2**30,
    }
)
_RATE_PATTERN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)(?:/s)?")


def parse_bytes_per_s(text: str) -> int:
    """Never a number without a unit: 50 was meant as MB. BadRequest lists the forms."""
    match = _RATE_PATTERN.fullmatch(text)
    factor = BYTE_UNITS.get(match[2]) if match else None
    if match is None or factor is None:
        units = ", ".join(unit for unit in BYTE_UNITS if unit)
        raise BadRequest(
            f"{text!r} is no rate: give a number with a unit ({units}), with or without /s, such as 50MB/s or 1.5GiB"
        )
    rate = int(Decimal(match[1]) * factor)
    if rate < 1:
        raise BadRequest(f"{text!r}: nothing is read at that rate; `mirrorbook mirror pause` ends copying for now")
    if not match[2]:
        raise BadRequest(
            f"{text!r} has no unit: {text}MB is {format_bytes(rate * 10**6)} a second, {text}B is {rate:,} B"
        )
    return rate


@dataclass(slots=True)
class RateLimiter:
    """Waits until what was read is within the rate. Idle time is not saved up."""

    rate: int | None
    due_s: float = 0.0
    """When all reads so far are within the rate, in seconds of the caller's clock."""

    def record_read(self, size: int, now: float) -> None:
        if self.rate is not None:
            self.due_s = max(self.due_s, now) + size / self.rate

    def wait_s(self, now: float) -> float:
        return max(0.0, self.due_s - now)

    def limit_fetch_bytes(self, max_bytes: int, links: int = 1) -> int:
        return max_bytes if self.rate is None else min(max_bytes, max(MIN_FETCH_BYTES, self.rate // links))


def share_rate(
    rate: int | None, groups: Sequence[Sequence[Partition]], lags: Mapping[Partition, int]
) -> list[int | None]:
    """Bytes per second for each task by its lag, as for `assign_partitions`; together the mirror's rate."""
    if rate is None:
        return [None] * len(groups)
    loads = [sum(max(lags[p], 0) + 100 for p in group) for group in groups]
    return [max(1, rate * load // sum(loads)) for load in loads]


MAX_EPOCH_S: Final = 120.0
_SLOT_RESERVE_S: Final = 10.0
"""Before the next epoch ends, the following epoch's tasks need the slots of comparing tasks."""
_MIN_COMPARISON_S: Final = 1.0


def compute_epoch_s(usual_s: float, now_s: float, lasted_s: float, *, was_cut_short: bool, is_unknown: bool) -> float:
    """`now_s`: the length otherwise; epochs overlap, and an older one may have made it longer. `is_unknown`: a task
    could not report, so a comparison may still be open.
    """
    if not was_cut_short:
        return now_s if is_unknown else usual_s
    return max(now_s, min(2 * lasted_s, max(MAX_EPOCH_S, usual_s)))


def compute_comparison_s(usual_s: float) -> float:
    """How long tasks may compare logs past their epoch. There are slots for two epochs, not three."""
    return max(usual_s - _SLOT_RESERVE_S, _MIN_COMPARISON_S)

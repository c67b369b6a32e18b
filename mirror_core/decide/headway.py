"""Progress and time left of something long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange


def count_compared(ranges: Sequence[ParityRange], proven: Mapping[Partition, Offset]) -> tuple[int, int]:
    """Offsets compared equal without interruption from each range's start, and all offsets. `proven`: next
    offset, by partition.
    """
    done = sum(min(r.end, max(r.start, proven.get(r.partition, r.start))) - r.start for r in ranges)
    return done, sum(r.end - r.start for r in ranges)


def format_progress(done: int, total: int, seconds: float) -> str:
    """`3,000 of 5,000 offsets, about 2 min left`, at the average speed so far."""
    seconds_left = math.ceil(seconds * (total - done) / done) if done > 0 else None
    return f"{done:,} of {total:,} offsets, {'time left unknown' if seconds_left is None else f'about {_format_duration(seconds_left)} left'}"


def format_catch_up(lag: int | None, first_lag: tuple[int, float] | None, now_s: float) -> str:
    if lag is None or first_lag is None:
        return "an unknown number of offset(s) left"
    done = first_lag[0] - lag
    seconds_left = math.ceil((now_s - first_lag[1]) * lag / done) if done > 0 else None
    return f"{lag:,} offset(s) left, {'time left unknown' if seconds_left is None else f'about {_format_duration(seconds_left)}'}"


def _format_duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

"""How fast a task may read: a mirror's throttle, shared among its tasks. The caller passes the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Partition

MIN_FETCH_BYTES: Final = 64 << 10


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
    """Bytes per second for each task by its lag, together the mirror's rate. A partition without lag
    counts a little.
    """
    if rate is None:
        return [None] * len(groups)
    loads = [sum(max(lags[p], 0) + 100 for p in group) for group in groups]
    return [max(1, rate * load // sum(loads)) for load in loads]

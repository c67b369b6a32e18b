"""How fast a task may read: a mirror's throttle, shared among its tasks. Pure; the clock is the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Partition

LEAST_ANSWER: Final = 64 << 10
"""Bytes; asking for less at a time would cost more requests than it spares the link."""


@dataclass(slots=True)
class RateLimiter:
    """Keeps a rate by waiting until what was read is paid for. Nothing is saved up while there is nothing to read."""

    rate: int | None
    """Bytes per second; None: as fast as it goes."""
    due: float = 0.0
    """When all that was read so far is paid for, in seconds of the caller's clock."""

    def took(self, size: int, now: float) -> None:
        """So many bytes were read."""
        if self.rate is not None:
            self.due = max(self.due, now) + size / self.rate

    def wait_s(self, now: float) -> float:
        """Seconds until more may be asked for."""
        return max(0.0, self.due - now)

    def answer_bytes(self, most: int, links: int = 1) -> int:
        """How much to ask for at a time on each of so many links: about a second's worth, so that no answer must be
        waited off for long."""
        return most if self.rate is None else min(most, max(LEAST_ANSWER, self.rate // links))


def shares(rate: int | None, groups: Sequence[Sequence[Partition]], lags: Mapping[Partition, int]) -> list[int | None]:
    """Bytes per second for each task, by what its partitions have to catch up; together the mirror's rate.

    A partition without lag counts a little: what is produced from now on is copied, too.
    """
    if rate is None:
        return [None] * len(groups)
    loads = [sum(max(lags[p], 0) + 100 for p in group) for group in groups]
    return [max(1, rate * load // sum(loads)) for load in loads]

"""Tracks ranges that the source trimmed before they were copied. They are recorded before copying
passes them.

The gap that replaces such a range does not show that records were lost, and only the driver writes the state topic. So
a task waits until the driver confirms. Without datagrams it goes on after a while, because it may be overtaken again;
its final report names the range. If another leader still has the range, it is copied and not reported. A task without a
driver (a run's drain) leaves the partition alone: the run records the report, and starts another task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.model.copying import TrimmedRange
from mirror_core.model.names import Offset, Partition

MAX_RECORD_WAIT_S: Final = 5.0


class TrimTracker:
    __slots__ = (
        "_clock",
        "_counted_up_to",
        "_passed_count",
        "_recorded_up_to",
        "_waiting_since",
        "_has_driver",
        "ranges",
        "source_start",
    )

    def __init__(self, counted_up_to: int | None, clock: Callable[[], float], *, has_driver: bool) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.source_start: int | None = None
        self._clock = clock
        self._has_driver = has_driver
        self._counted_up_to = counted_up_to
        self._recorded_up_to = -1
        self._passed_count = 0
        self._waiting_since: float | None = None

    def can_pass(self, trimmed_from: int | None, source_start: int, acknowledged: int) -> bool:
        """Whether copying may go on at the source's log start.

        `first`: the source trimmed uncopied offsets from here to its start; None: nothing. `acknowledged`: how far this
        task knows the copy to be.
        """
        now = self._clock()
        if self._counted_up_to is None:
            self._counted_up_to = self.get_reached_start(acknowledged)
        while len(self.ranges) > self._passed_count and source_start < self.ranges[-1][1] > self._recorded_up_to:
            self._counted_up_to, _ = self.ranges.pop()  # another leader still has some of it
        if trimmed_from is not None and self._counted_up_to is not None and source_start > self._counted_up_to:
            self.ranges.append((max(trimmed_from, self._counted_up_to), source_start))
            self._counted_up_to = source_start
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self.source_start = source_start
        if self._waiting_since is not None and (
            not self.unrecorded or (self._has_driver and now - self._waiting_since >= MAX_RECORD_WAIT_S)
        ):
            self._waiting_since = None
        if self._waiting_since is None:
            self._passed_count = len(self.ranges)
        return self._waiting_since is None

    def get_reached_start(self, acknowledged: int) -> int | None:
        return self.source_start if self.source_start is not None and acknowledged >= self.source_start else None

    @property
    def is_waiting(self) -> bool:
        return self._waiting_since is not None

    @property
    def is_blocked(self) -> bool:
        """True when it waits for a confirmation that this task cannot receive."""
        return self.is_waiting and not self._has_driver

    @property
    def unrecorded(self) -> list[tuple[int, int]]:
        return [trimmed for trimmed in self.ranges if trimmed[1] > self._recorded_up_to]

    def mark_recorded(self, upto: int) -> None:
        self._recorded_up_to = max(self._recorded_up_to, upto)

    def to_trimmed_ranges(self, partition: Partition) -> list[TrimmedRange]:
        return [TrimmedRange(partition=partition, first=Offset(first), next=Offset(end)) for first, end in self.ranges]

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

from mirror_core.model.copying import Deletion
from mirror_core.model.names import Offset, Partition

RECORDED_S: Final = 5.0


class Deletions:
    __slots__ = ("_clock", "_counted", "_passed", "_recorded", "_since", "_told", "found", "source_start")

    def __init__(self, counted: int | None, clock: Callable[[], float], *, told: bool) -> None:
        self.found: list[tuple[int, int]] = []
        self.source_start: int | None = None
        self._clock = clock
        self._told = told
        self._counted = counted
        self._recorded = -1
        self._passed = 0
        self._since: float | None = None

    def may_pass(self, first: int | None, source_start: int, acknowledged: int) -> bool:
        """Whether copying may go on at the source's log start.

        `first`: the source trimmed uncopied offsets from here to its start; None: nothing. `acknowledged`: how far this
        task knows the copy to be.
        """
        now = self._clock()
        if self._counted is None:
            self._counted = self.reached(acknowledged)
        while len(self.found) > self._passed and source_start < self.found[-1][1] > self._recorded:
            self._counted, _ = self.found.pop()  # another leader still has some of it
        if first is not None and self._counted is not None and source_start > self._counted:
            self.found.append((max(first, self._counted), source_start))
            self._counted = source_start
            self._since = now if self._since is None else self._since
        self.source_start = source_start
        if self._since is not None and (not self.unrecorded or (self._told and now - self._since >= RECORDED_S)):
            self._since = None
        if self._since is None:
            self._passed = len(self.found)
        return self._since is None

    def reached(self, acknowledged: int) -> int | None:
        return self.source_start if self.source_start is not None and acknowledged >= self.source_start else None

    @property
    def waits(self) -> bool:
        return self._since is not None

    @property
    def holds(self) -> bool:
        """True when it waits for a confirmation that this task cannot receive."""
        return self.waits and not self._told

    @property
    def unrecorded(self) -> list[tuple[int, int]]:
        return [one for one in self.found if one[1] > self._recorded]

    def recorded(self, upto: int) -> None:
        self._recorded = max(self._recorded, upto)

    def of(self, partition: Partition) -> list[Deletion]:
        return [Deletion(partition=partition, first=Offset(first), next=Offset(end)) for first, end in self.found]

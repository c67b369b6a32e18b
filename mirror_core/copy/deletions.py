"""What the source deleted of a partition before it was copied: told to the driver, and recorded, before it is passed.

Behind the gap that is put in its place nothing tells of it any more, and only the driver writes the state topic. So a
task waits until it hears that the deletion is recorded. It does not wait for ever: where no datagram comes through it
goes on after a while, since what waits may be overtaken again, and its report tells of it at its end. A task that has
no driver, in the drain of a run, leaves the partition alone: the run records what it reports, and begins another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirror_core.model.copying import Deletion
from mirror_core.model.names import Offset, Partition

RECORDED_S: Final = 5.0
"""How long a task waits at most for what takes the driver a tenth of a second."""


class Deletions:
    """Of one partition and task."""

    __slots__ = ("_clock", "_counted", "_recorded", "_since", "_told", "found", "source_start")

    def __init__(self, counted: int | None, clock: Callable[[], float], *, told: bool) -> None:
        """`counted`: as in the assignment. `told`: a driver hears of them, and answers."""
        self.found: list[tuple[int, int]] = []
        """[first, next) of each, in order."""
        self.source_start: int | None = None
        """The source's log start, when it was last asked."""
        self._clock = clock
        self._told = told
        self._counted = counted
        self._recorded = -1
        """What ends there or before is recorded."""
        self._since: float | None = None
        """Monotonic time since when it waits; None: it does not."""

    def may_pass(self, first: int | None, source_start: int, acknowledged: int) -> bool:
        """Whether copying may go on at the source's log start. `first`: from there up to it the source deleted what was
        not copied; None: nothing. `acknowledged`: how far the copy had come, as far as this task knows."""
        now = self._clock()
        if self._counted is None:
            self._counted = self.reached(acknowledged)
        if first is not None and self._counted is not None and source_start > self._counted:
            self.found.append((max(first, self._counted), source_start))
            self._counted = source_start
            self._since = now if self._since is None else self._since
        self.source_start = source_start
        if self._since is not None and (not self.unrecorded or (self._told and now - self._since >= RECORDED_S)):
            self._since = None
        return self._since is None

    def reached(self, acknowledged: int) -> int | None:
        """The source's log start, if the copy has come so far."""
        return self.source_start if self.source_start is not None and acknowledged >= self.source_start else None

    @property
    def waits(self) -> bool:
        return self._since is not None

    @property
    def holds(self) -> bool:
        """Whether it waits for what this task will not hear."""
        return self.waits and not self._told

    @property
    def unrecorded(self) -> list[tuple[int, int]]:
        return [one for one in self.found if one[1] > self._recorded]

    def recorded(self, upto: int) -> None:
        """The driver has recorded what ends at this offset or before."""
        self._recorded = max(self._recorded, upto)

    def of(self, partition: Partition) -> list[Deletion]:
        """All of them, for the report."""
        return [Deletion(partition=partition, first=Offset(first), next=Offset(end)) for first, end in self.found]

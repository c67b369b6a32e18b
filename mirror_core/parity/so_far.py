"""What a comparison has shown by now, told while it goes on: whoever is killed then reads little twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from mirror_core.decide.parity import Row, fill_gaps, judge
from mirror_core.decide.parity_rows import fewer
from mirror_core.model.parity import ParityRange, ParityResult

SoFar = Callable[[ParityResult], None]
"""Told from time to time what was compared by then."""

TELL_S: Final = 5.0
"""At least so long goes by from one telling to the next. Whoever is told writes it down, more seldom where that costs
others something."""
SELDOM: Final = 20
"""And this many times as long as telling took: of many partitions the record is long, and a cluster may be far away."""
PARTITIONS_PER_S: Final = 500
"""And a second for so many partitions: the record has some 50 bytes of each, so that is 90 MB in an hour at most."""


class Telling:
    """Of one comparison. What is told costs as much as is new: what agreed before is few rows."""

    def __init__(self, tell: SoFar, ranges: Sequence[ParityRange], level: int, ends: Sequence[Row]) -> None:
        self._tell, self._ranges, self._level = tell, ranges, level
        self._known, self._new = list(ends), list[Row]()
        self._due_at = time.monotonic() + self._pause_s(0.0)

    def add(self, rows: Sequence[Row]) -> None:
        """What a task has found, if anything; all that is new is told when it is time."""
        self._new += rows
        began = time.monotonic()
        if not self._new or began < self._due_at:
            return
        self._known, self._new = fewer([*self._known, *self._new]), []
        self._tell(judge(self._ranges, fill_gaps(self._ranges, self._known, self._level), self._level))
        ended = time.monotonic()
        self._due_at = ended + self._pause_s(ended - began)

    def _pause_s(self, took_s: float) -> float:
        return max(TELL_S, SELDOM * took_s, len(self._ranges) / PARTITIONS_PER_S)

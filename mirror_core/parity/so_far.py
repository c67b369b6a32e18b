"""Parity check: runs tasks anywhere, reports progress, writes the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from mirror_core.decide.parity import Row, fill_gaps, judge
from mirror_core.decide.parity_rows import fewer
from mirror_core.model.parity import ParityRange, ParityResult

SoFar = Callable[[ParityResult], None]

TELL_S: Final = 5.0
"""Minimum time between reports of progress."""
SELDOM: Final = 20
"""Pause this many times as long as the last report took."""
PARTITIONS_PER_S: Final = 500
"""Pause a second for so many partitions: records of 50 bytes each make 90 MB an hour at most."""


class Telling:
    """Partial results. Reporting costs as much as is new."""

    def __init__(self, tell: SoFar, ranges: Sequence[ParityRange], level: int, ends: Sequence[Row]) -> None:
        self._tell, self._ranges, self._level = tell, ranges, level
        self._known, self._new = list(ends), list[Row]()
        self._due_at = time.monotonic() + self._pause_s(0.0)

    def add(self, rows: Sequence[Row]) -> None:
        """Report what is new when it is due."""
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

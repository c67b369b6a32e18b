"""Parity check: runs tasks anywhere, reports progress, writes the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from mirror_core.decide.parity import ParityRow, fill_missing_rows, judge_rows
from mirror_core.decide.parity_rows import merge_equal_rows
from mirror_core.model.parity import ParityRange, ParityResult

OnParityProgress = Callable[[ParityResult], None]

PROGRESS_INTERVAL_S: Final = 5.0
"""Minimum time between reports of progress."""
PROGRESS_COST_FACTOR: Final = 20
"""Pause this many times as long as the last report took."""
PARTITIONS_PER_S: Final = 500
"""Pause a second for so many partitions: records of 50 bytes each make 90 MB an hour at most."""


class ParityProgress:
    """Partial results. Reporting costs as much as is new."""

    def __init__(
        self, on_progress: OnParityProgress, ranges: Sequence[ParityRange], level: int, ends: Sequence[ParityRow]
    ) -> None:
        self._on_progress, self._ranges, self._level = on_progress, ranges, level
        self._known, self._new = list(ends), list[ParityRow]()
        self._due_at = time.monotonic() + self._pause_s(0.0)

    def add(self, rows: Sequence[ParityRow]) -> None:
        """Report what is new when it is due."""
        self._new += rows
        began = time.monotonic()
        if not self._new or began < self._due_at:
            return
        self._known, self._new = merge_equal_rows([*self._known, *self._new]), []
        self._on_progress(
            judge_rows(self._ranges, fill_missing_rows(self._ranges, self._known, self._level), self._level)
        )
        ended = time.monotonic()
        self._due_at = ended + self._pause_s(ended - began)

    def _pause_s(self, took_s: float) -> float:
        return max(PROGRESS_INTERVAL_S, PROGRESS_COST_FACTOR * took_s, len(self._ranges) / PARTITIONS_PER_S)

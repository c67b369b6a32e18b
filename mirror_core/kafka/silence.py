"""Who was asked in vain, for some partitions in a row: no other one is to wait for them, too."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from mirror_core.model.errors import Unreachable

PATIENCE: Final = 2
"""Partitions in a row that may cost the whole time limit each; the next ones are not even tried."""
AGAIN_S: Final = 60.0
"""After so long one is: a broker may have come back, and a reader may be kept for days."""
Leader = tuple[str, int]
"""Its address."""
NOBODY: Final[Leader] = ("", -1)
"""Leads a partition."""


class Silence:
    """Of one cluster. That a broker hangs is no reason to leave out what others lead."""

    def __init__(self) -> None:
        self._in_vain = Counter[Leader | None]()
        """None: to be told who leads."""
        self._last_s = -math.inf
        """Monotonic time at which somebody was last given up."""

    def kept(self, asked: Collection[Leader | None]) -> None:
        """All of these, for the whole time limit: one after the other, where leadership was told to have moved."""
        if asked:
            self._in_vain.update(asked)
            self._last_s = time.monotonic()

    def ended(self, whom: Leader) -> None:
        """It has answered, and so somebody has told who leads."""
        self._in_vain[whom] = self._in_vain[None] = 0

    def heed(self, where: str, known: Leader | None, anew: Callable[[], Leader]) -> None:
        """Unreachable where others have waited in vain, and not long ago. `known`: who led it when that was asked last;
        None: not asked yet. `anew` asks."""
        suspects = self._in_vain if known is None else (known, None)
        if not any(map(self._of, suspects)) or time.monotonic() - self._last_s > AGAIN_S:
            return
        who = "the cluster has not answered"
        if not self._of(None):
            try:
                whom = anew()
            except Unreachable as error:
                self.kept([None])
                raise Unreachable(f"{where}: {error}") from None
            if not self._of(whom):
                return
            who = "nobody leads it, as was so" if whom == NOBODY else "its leader has not answered"
        raise Unreachable(f"{where}: not tried: {who} for {PATIENCE} partitions before")

    def _of(self, whom: Leader | None) -> bool:
        return self._in_vain[whom] >= PATIENCE

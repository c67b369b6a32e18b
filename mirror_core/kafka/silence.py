"""Who was asked in vain, for some partitions in a row: no other one is to wait for them, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from mirror_core.model.errors import Unreachable

PATIENCE: Final = 2
"""Partitions in a row that may cost the whole time limit each; the next ones are not even tried."""
Leader = tuple[str, int]
"""Its address."""
NOBODY: Final[Leader] = ("", -1)
"""Leads a partition."""


class Silence:
    """Of one cluster. That a broker hangs is no reason to leave out what others lead."""

    def __init__(self) -> None:
        self._in_vain = Counter[Leader | None]()
        """None: to be told who leads."""

    def kept(self, whom: Leader | None) -> None:
        """For the whole time limit."""
        self._in_vain[whom] += 1

    def ended(self, whom: Leader) -> None:
        """It has answered, and so somebody has told who leads."""
        self._in_vain[whom] = self._in_vain[None] = 0

    def heed(self, where: str, known: Leader | None, anew: Callable[[], Leader]) -> None:
        """Unreachable where others have waited in vain. `known`: who led it when that was asked last; None: not asked
        yet. `anew` asks."""
        if not (self._of(known) if known else any(map(self._of, self._in_vain))):
            return
        who = "the cluster has not answered"
        if not self._of(None):
            try:
                whom = anew()
            except Unreachable:
                self.kept(None)
                raise
            if not self._of(whom):
                return
            who = "nobody leads it, as was so" if whom == NOBODY else "its leader has not answered"
        raise Unreachable(f"{where}: not tried: {who} for {PATIENCE} partitions before")

    def _of(self, whom: Leader | None) -> bool:
        return self._in_vain[whom] >= PATIENCE

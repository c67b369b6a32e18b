"""Skips brokers after repeated timeouts, so that later partitions do not wait for them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from mirror_core.model.errors import Unreachable

PATIENCE: Final = 2
"""In a row, each a full time limit."""
AGAIN_S: Final = 60.0
"""Then one is tried again."""
Leader = tuple[str, int]
NOBODY: Final[Leader] = ("", -1)


class Silence:
    """A hanging broker does not affect what others lead."""

    def __init__(self) -> None:
        self._in_vain = Counter[Leader | None]()
        """None: the metadata itself."""
        self._last_s = -math.inf

    def kept(self, asked: Collection[Leader | None]) -> None:
        """Several if leadership moved."""
        if asked:
            self._in_vain.update(asked)
            self._last_s = time.monotonic()

    def ended(self, whom: Leader) -> None:
        self._in_vain[whom] = self._in_vain[None] = 0

    def heed(self, where: str, known: Leader | None, anew: Callable[[], Leader]) -> None:
        """Unreachable if it is backed off. None: leader unknown."""
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

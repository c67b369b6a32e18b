"""How many bytes to fetch at a time. Pure."""

from __future__ import annotations

import math
from typing import Final

NEAR_BYTES: Final = 2 << 20
FAR_S: Final = 0.02
_SAMPLES: Final = 3
_QUIET_BYTES: Final = 1 << 20


def share(budget: int, giving: int, quiet: int, *, gives: bool) -> int:
    """One broker's part of the budget. Active ones share equally what idle ones leave.

    Active: more data than the last response held. If none is, the idle ones share everything.
    """
    if not giving:
        return budget // quiet
    least = min(_QUIET_BYTES, budget // (2 * (giving + quiet)))
    return (budget - quiet * least) // giving if gives else least


class FetchSizer:
    """Grows the fetch size only as far as keeps the broker busy.

    Fresh data is still in CPU caches: 2 MiB responses cost a fifth less than 8 MiB ones. But only one is in flight, so
    a distant broker needs larger ones.
    """

    def __init__(self, most: int, first: int = NEAR_BYTES) -> None:
        self.most = most
        self.size = min(most, first)
        self._first = first
        self._samples = 0
        self._fastest_s = math.inf

    def limit(self, most: int) -> None:
        self.most = most
        self.size = min(most, max(self.size, self._first))

    def took(self, size: int, seconds: float) -> None:
        """`seconds`: until the response came or we were ready for it."""
        if size <= self.size // 2:
            return  # little data: the broker may have waited for it
        self._samples += 1
        self._fastest_s = min(self._fastest_s, seconds)
        if self._samples >= _SAMPLES and self._fastest_s > FAR_S:
            self.size = min(self.most, 2 * self.size)
            self._samples, self._fastest_s = 0, math.inf

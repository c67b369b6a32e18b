"""How much to ask a broker for at a time. Pure; the clock is the caller's."""

from __future__ import annotations

import math
from typing import Final

NEAR_BYTES: Final = 2 << 20
FAR_S: Final = 0.02
_SAMPLES: Final = 3
_QUIET_BYTES: Final = 1 << 20


def share(budget: int, giving: int, quiet: int, *, gives: bool) -> int:
    """Bytes of one broker's answers, of a budget for those of all brokers together.

    Brokers that have more to give than came in their newest answers (`giving`, and `gives`: this is one of them) share
    equally what the others leave. While there is none, the others share all of it: much may come at once.
    """
    if not giving:
        return budget // quiet
    least = min(_QUIET_BYTES, budget // (2 * (giving + quiet)))
    return (budget - quiet * least) // giving if gives else least


class FetchSizer:
    """How much to ask a broker for at a time: as little as keeps it busy.

    What has just arrived is still in the processor's caches when it is checked and sent on: answers of 2 MiB cost a
    fifth less than ones of 8 MiB. But only one answer is on its way at a time: a far broker has to be asked for more.
    """

    def __init__(self, most: int, first: int = NEAR_BYTES) -> None:
        """`most` bytes, and so many at first."""
        self.most = most
        self.size = min(most, first)
        """Bytes to ask for."""
        self._first = first
        self._samples = 0
        self._fastest_s = math.inf

    def limit(self, most: int) -> None:
        """At most so many from now on."""
        self.most = most
        self.size = min(most, max(self.size, self._first))

    def took(self, size: int, seconds: float) -> None:
        """An answer of so many bytes had come so long after it was asked for, or had waited for us until then."""
        if size <= self.size // 2:
            return  # the broker had no more, and may have waited for it
        self._samples += 1
        self._fastest_s = min(self._fastest_s, seconds)
        if self._samples >= _SAMPLES and self._fastest_s > FAR_S:
            self.size = min(self.most, 2 * self.size)
            self._samples, self._fastest_s = 0, math.inf

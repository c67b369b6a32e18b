"""How much to ask a broker for at a time. Pure; the clock is the caller's."""

from __future__ import annotations

import math
from typing import Final

NEAR_BYTES: Final = 2 << 20
FAR_S: Final = 0.02
_SAMPLES: Final = 3


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
        self._samples = 0
        self._fastest_s = math.inf

    def took(self, size: int, seconds: float) -> None:
        """An answer of so many bytes had come so long after it was asked for, or had waited for us until then."""
        if size <= self.size // 2:
            return  # the broker had no more, and may have waited for it
        self._samples += 1
        self._fastest_s = min(self._fastest_s, seconds)
        if self._samples >= _SAMPLES and self._fastest_s > FAR_S:
            self.size = min(self.most, 2 * self.size)
            self._samples, self._fastest_s = 0, math.inf

"""How many bytes to fetch at a time. Pure."""

from __future__ import annotations

import math
from typing import Final

INITIAL_FETCH_BYTES: Final = 2 << 20
FAR_RESPONSE_S: Final = 0.02
_MIN_SAMPLES: Final = 3
_IDLE_SHARE_BYTES: Final = 1 << 20


def split_budget(budget: int, active_brokers: int, idle_brokers: int, *, is_active: bool) -> int:
    """One broker's part of the budget. Active ones share equally what idle ones leave.

    Active: more data than the last response held. If none is, the idle ones share everything.
    """
    if not active_brokers:
        return budget // idle_brokers
    idle_share = min(_IDLE_SHARE_BYTES, budget // (2 * (active_brokers + idle_brokers)))
    return (budget - idle_brokers * idle_share) // active_brokers if is_active else idle_share


class FetchSizer:
    """Grows the fetch size only as far as keeps the broker busy.

    Fresh data is still in CPU caches: 2 MiB responses cost a fifth less than 8 MiB ones. But only one is in flight, so
    a distant broker needs larger ones.
    """

    def __init__(self, max_bytes: int, initial_bytes: int = INITIAL_FETCH_BYTES) -> None:
        self.max_bytes = max_bytes
        self.request_bytes = min(max_bytes, initial_bytes)
        self._initial_bytes = initial_bytes
        self._samples = 0
        self._fastest_s = math.inf

    def set_limit(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.request_bytes = min(max_bytes, max(self.request_bytes, self._initial_bytes))

    def record_response(self, size: int, seconds: float) -> None:
        """`seconds`: until the response came or we were ready for it."""
        if size <= self.request_bytes // 2:
            return  # little data: the broker may have waited for it
        self._samples += 1
        self._fastest_s = min(self._fastest_s, seconds)
        if self._samples >= _MIN_SAMPLES and self._fastest_s > FAR_RESPONSE_S:
            self.request_bytes = min(self.max_bytes, 2 * self.request_bytes)
            self._samples, self._fastest_s = 0, math.inf

"""Skips brokers after repeated timeouts, so that later partitions do not wait for them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from mirror_core.model.errors import Unreachable

TIMEOUTS_BEFORE_BACKOFF: Final = 2
"""In a row, each a full time limit."""
BACKOFF_S: Final = 60.0
"""Then one is tried again."""
LeaderAddress = tuple[str, int]
NO_LEADER: Final[LeaderAddress] = ("", -1)


class BrokerBackoff:
    """A hanging broker does not affect what others lead."""

    def __init__(self) -> None:
        self._timeouts = Counter[LeaderAddress | None]()
        """None: the metadata itself."""
        self._last_s = -math.inf

    def record_timeouts(self, leaders: Collection[LeaderAddress | None]) -> None:
        """Several if leadership moved."""
        if leaders:
            self._timeouts.update(leaders)
            self._last_s = time.monotonic()

    def record_response(self, leader: LeaderAddress) -> None:
        self._timeouts[leader] = self._timeouts[None] = 0

    def check_leader(
        self, where: str, known_leader: LeaderAddress | None, refresh_leader: Callable[[], LeaderAddress]
    ) -> None:
        """Unreachable if it is backed off. None: leader unknown."""
        suspects = self._timeouts if known_leader is None else (known_leader, None)
        if not any(map(self._is_backed_off, suspects)) or time.monotonic() - self._last_s > BACKOFF_S:
            return
        reason = "the cluster has not answered"
        if not self._is_backed_off(None):
            try:
                leader = refresh_leader()
            except Unreachable as error:
                self.record_timeouts([None])
                raise Unreachable(f"{where}: {error}") from None
            if not self._is_backed_off(leader):
                return
            reason = "nobody leads it, as was so" if leader == NO_LEADER else "its leader has not answered"
        raise Unreachable(f"{where}: not tried: {reason} for {TIMEOUTS_BEFORE_BACKOFF} partitions before")

    def _is_backed_off(self, leader: LeaderAddress | None) -> bool:
        return self._timeouts[leader] >= TIMEOUTS_BEFORE_BACKOFF

"""Brokers to skip after timeouts, and those with stale metadata."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from mirror_core.model.errors import Unreachable

Address = tuple[str, int]
AnyConnection = TypeVar("AnyConnection")
_MAX_ALTERNATIVES: Final = 3
_CONNECT_PAUSE_S: Final = 10.0
_MAX_STALE_BROKERS: Final = 8
"""If so many agree, the fault is not theirs."""


class StaleMetadata:
    def __init__(self) -> None:
        self._last_source: Address | None = None
        self._stale_brokers = set[Address]()
        self._newly_stale = False
        self._next_connect_at = -math.inf

    def record_response(self, address: Address) -> None:
        self._last_source = address

    def mark_stale(self) -> None:
        if self._last_source is not None:
            self._stale_brokers.add(self._last_source)
            self._newly_stale = True

    def order_connections(self, connections: Mapping[Address, AnyConnection]) -> list[tuple[Address, AnyConnection]]:
        return sorted(
            connections.items(),
            key=lambda item: (
                item[0] in self._stale_brokers,
                item[0] in self._stale_brokers and item[0] == self._last_source,
            ),
        )

    def choose_alternatives(
        self, known: Sequence[Address], connected: Collection[Address], now: float
    ) -> list[Address]:
        """When all, or many, connected brokers are stale, only the last stays marked, so they take turns."""
        if not self._newly_stale:
            return []
        self._newly_stale = False
        too_many_stale = len(connected) >= _MAX_STALE_BROKERS and self._stale_brokers.issuperset(connected)
        if self._last_source is not None and (too_many_stale or self._stale_brokers.issuperset(known)):
            self._stale_brokers = {self._last_source}
        alternatives = [address for address in known if address not in self._stale_brokers]
        if not connected or not self._stale_brokers.issuperset(connected) or now < self._next_connect_at:
            return []
        self._next_connect_at = now + _CONNECT_PAUSE_S
        return random.sample(alternatives, min(_MAX_ALTERNATIVES, len(alternatives)))


TIMEOUTS_BEFORE_BACKOFF: Final = 2
"""In a row, each a full time limit."""
BACKOFF_S: Final = 60.0
"""Then one is tried again."""
LeaderAddress = tuple[str, int]
NO_LEADER: Final[LeaderAddress] = ("", -1)


class BrokerBackoff:
    def __init__(self) -> None:
        self._timeouts = Counter[LeaderAddress | None]()
        """Under None: the metadata itself."""
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

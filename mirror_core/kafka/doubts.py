"""Brokers with wrong metadata about leaders, perhaps cut off from the controllers. No I/O."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

Address = tuple[str, int]
AnyConnection = TypeVar("AnyConnection")

_MAX_ALTERNATIVES: Final = 3
_CONNECT_PAUSE_S: Final = 10.0
_MAX_STALE_BROKERS: Final = 8
"""If so many agree, their metadata is no fault of theirs."""


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
        """Where to connect when all connected brokers are stale.

        When all, or many, are stale, only the last stays marked, so they take turns.
        """
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

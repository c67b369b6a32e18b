"""Brokers with wrong metadata about leaders, perhaps cut off from the controllers. No I/O."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

Address = tuple[str, int]
Connection = TypeVar("Connection")

_SOME: Final = 3
_AGAIN_S: Final = 10.0
_ENOUGH: Final = 8
"""If so many agree, their metadata is no fault of theirs."""


class Doubts:
    def __init__(self) -> None:
        self._told_by: Address | None = None
        self._doubted = set[Address]()
        self._anew = False
        self._open_at = -math.inf

    def told(self, address: Address) -> None:
        self._told_by = address

    def doubt(self) -> None:
        if self._told_by is not None:
            self._doubted.add(self._told_by)
            self._anew = True

    def in_order(self, connections: Mapping[Address, Connection]) -> list[tuple[Address, Connection]]:
        return sorted(
            connections.items(),
            key=lambda one: (one[0] in self._doubted, one[0] in self._doubted and one[0] == self._told_by),
        )

    def to_open(self, known: Sequence[Address], connected: Collection[Address], now: float) -> list[Address]:
        """Where to connect when all connected brokers are stale.

        When all, or many, are stale, only the last stays marked, so they take turns.
        """
        if not self._anew:
            return []
        self._anew = False
        enough = len(connected) >= _ENOUGH and self._doubted.issuperset(connected)
        if self._told_by is not None and (enough or self._doubted.issuperset(known)):
            self._doubted = {self._told_by}
        elsewhere = [address for address in known if address not in self._doubted]
        if not connected or not self._doubted.issuperset(connected) or now < self._open_at:
            return []
        self._open_at = now + _AGAIN_S
        return random.sample(elsewhere, min(_SOME, len(elsewhere)))

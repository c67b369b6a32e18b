"""Which brokers' word on leaders has turned out not to hold. They may be cut off from the controllers, and not from us.

No I/O; the clock is given.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeVar

Address = tuple[str, int]
Connection = TypeVar("Connection")

_SOME: Final = 3
_AGAIN_S: Final = 10.0
"""So many others are connected to at a time; and not more often, whatever they say."""
_ENOUGH: Final = 8
"""Connections: what does not hold for that many brokers is no fault of theirs, and may last for days."""


class Doubts:
    """Of one cluster's brokers."""

    def __init__(self) -> None:
        self._told_by: Address | None = None
        self._doubted = set[Address]()
        self._anew = False
        self._open_at = -math.inf

    def told(self, address: Address) -> None:
        """It has answered the newest question for any."""
        self._told_by = address

    def doubt(self) -> None:
        """What was told last does not hold."""
        if self._told_by is not None:
            self._doubted.add(self._told_by)
            self._anew = True

    def in_order(self, connections: Mapping[Address, Connection]) -> list[tuple[Address, Connection]]:
        """Who is doubted comes last, and is asked all the same where nobody else answers."""
        return sorted(
            connections.items(),
            key=lambda one: (one[0] in self._doubted, one[0] in self._doubted and one[0] == self._told_by),
        )

    def to_open(self, known: Sequence[Address], connected: Collection[Address], now: float) -> list[Address]:
        """Others to connect to, if all that we are connected to are doubted. When all that there are have been doubted,
        or enough, it is only the last one that is; so they are asked in turn."""
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

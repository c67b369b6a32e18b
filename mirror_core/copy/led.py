"""Active and idle partitions of one source broker.

A Fetch and its response name each partition. Beside one partition that delivers a hundred times a second, a thousand
idle ones would cost more than it, on both sides. So idle ones have a link of their own, where the request waits at the
broker for data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.model.names import Partition

MANY: Final = 64
_CALM_S: Final = 10.0
_AGAIN_S: Final = 1.0
_SOON_S: Final = 1.0


class Led:
    """Each partition that may be fetched is in a request in flight, or in the next one of a free link."""

    def __init__(self) -> None:
        self._all: dict[PartitionReplicator, None] = {}
        self._lively: dict[PartitionReplicator, None] = {}
        self._moving: list[PartitionReplicator] = []
        self.hurries = False
        """A partition in neither request waits for its first batch's response, which comes soon, and then for
        a link."""
        self._again_at = 0.0

    def add(self, one: PartitionReplicator) -> None:
        self._all[one] = self._lively[one] = None

    def drop(self, one: PartitionReplicator) -> None:
        for some in (self._all, self._lively):
            some.pop(one, None)

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self._all)

    def for_lanes(self) -> Collection[PartitionReplicator]:
        for one in self._moving:
            if one in self._all:
                self._lively[one] = None
        self._moving = []
        return self._lively

    def parted(self, now: float) -> tuple[list[PartitionReplicator], list[PartitionReplicator]]:
        lively, calm = list[PartitionReplicator](), list[PartitionReplicator]()
        for one in self._all:
            (calm if _calm(one, now) else lively).append(one)
        return lively, calm

    def calm_due(self, now: float) -> bool:
        return now >= self._again_at

    def for_calm(
        self,
        lively: Collection[PartitionReplicator],
        calm: Collection[PartitionReplicator],
        asked: Collection[Partition],
        now: float,
        wanted: Callable[[PartitionReplicator], bool],
    ) -> list[PartitionReplicator]:
        """Partitions for the idle link's next Fetch: idle ones, and active ones that the request in flight
        (`asked`) left out. The active links fetch the others from now on."""
        mine = [one for one in calm if wanted(one)]
        self._lively = {one: None for one in calm if not wanted(one)}
        self._moving = []
        self.hurries = False
        for one in lively:
            if one.partition in asked or one.source.apart(one.place.position) or not wanted(one):
                self._lively[one] = None
                waits = one.place.first_waits and now - one.source.gave_at < _SOON_S
                self.hurries |= waits and bool(asked) and one.partition not in asked
            else:
                mine.append(one)
                self._moving.append(one)
        self._again_at = 0.0 if mine else now + _AGAIN_S
        return mine

    def whole(self) -> None:
        self._lively, self._moving = dict(self._all), []


def many_calm(some: Collection[PartitionReplicator], now: float) -> bool:
    return len(some) >= MANY and sum(_calm(one, now) for one in some) >= MANY


def _calm(one: PartitionReplicator, now: float) -> bool:
    source = one.source
    read = source.readable_end is not None and one.place.position >= source.readable_end
    return read and now - source.gave_at > _CALM_S and not source.apart(one.place.position)

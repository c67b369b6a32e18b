"""What one source broker leads: partitions that give something, and those of which nothing has come for a while.

A question names each of its partitions, and so does its answer. Asked together with one that gives a hundred times a
second, a thousand that give nothing would cost far more than that one does, on both sides. So they have a link of their
own, the calm one, where a question rests at the broker until one of them gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.model.names import Partition

MANY: Final = 64
"""Calm partitions that are worth a link of their own."""
_CALM_S: Final = 10.0
"""After so long without anything."""
_AGAIN_S: Final = 1.0
_SOON_S: Final = 1.0
"""A destination that has not answered within it may never do."""


class Led:
    """By one broker. Who can be asked for is in a question under way, or in the next one of a link that is free."""

    def __init__(self) -> None:
        self._all: dict[PartitionReplicator, None] = {}
        self._lively: dict[PartitionReplicator, None] = {}
        """Whom the lanes ask for: all that the calm link does not."""
        self._moving: list[PartitionReplicator] = []
        """Lively ones that the calm link asks for until the lanes have their next question."""
        self.hurries = False
        """One that neither question names waits for its first batch's answer, which comes soon, and then for either
        question's."""
        self._again_at = 0.0
        """Monotonic time before which nobody is looked for to be asked for on the calm link."""

    def add(self, one: PartitionReplicator) -> None:
        """It is led by this broker, and has not been asked for since it took up its place."""
        self._all[one] = self._lively[one] = None

    def drop(self, one: PartitionReplicator) -> None:
        """Another broker leads it."""
        for some in (self._all, self._lively):
            some.pop(one, None)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of any."""
        return all(one.ended for one in self._all)

    def for_lanes(self) -> Collection[PartitionReplicator]:
        """Whom the lanes may ask for now."""
        for one in self._moving:
            if one in self._all:
                self._lively[one] = None
        self._moving = []
        return self._lively

    def parted(self, now: float) -> tuple[list[PartitionReplicator], list[PartitionReplicator]]:
        """Those that are lively, and those that are calm. `now`: monotonic time."""
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
        """Whom the calm link is to ask for: those that are calm, and lively ones that the lanes' question under way has
        left out (`asked`: whom it names). The lanes ask for the others from now on."""
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
        """There is no calm link any more."""
        self._lively, self._moving = dict(self._all), []


def many_calm(some: Collection[PartitionReplicator], now: float) -> bool:
    """Whether so many of these are calm that they are worth a link of their own. `now`: monotonic time."""
    return len(some) >= MANY and sum(_calm(one, now) for one in some) >= MANY


def _calm(one: PartitionReplicator, now: float) -> bool:
    """Whether all that its source has told of was read a while ago."""
    source = one.source
    read = source.readable_end is not None and one.place.position >= source.readable_end
    return read and now - source.gave_at > _CALM_S and not source.apart(one.place.position)

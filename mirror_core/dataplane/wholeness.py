"""Recovery points: the newest observation of the source whose ends were copied, per partition. Pure.

Positions only grow after it, so a later reader gets a lower estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.model.sighting import Seen

MOST: Final = 8
"""Per lagging partition, of which there may be 50,000; of more, every other one is dropped."""


class Wholeness:
    def __init__(self, before: Mapping[Partition, int] = MappingProxyType({})) -> None:
        self._waiting: dict[Partition, list[Seen]] = {}
        self._reached = {p: Seen(Offset(0), at_ms) for p, at_ms in before.items()}

    def seen(self, found: Mapping[Partition, Seen]) -> None:
        for partition, look in found.items():
            reached = self._reached.get(partition)
            line = self._waiting.setdefault(partition, [])
            if not line and reached is not None and look.end <= reached.end:
                self._reached[partition] = Seen(reached.end, look.at_ms)
                continue
            line.append(look)
            if len(line) > MOST:
                line[:] = line[::2]

    def behind(self) -> frozenset[Partition]:
        return frozenset(p for p, line in self._waiting.items() if line)

    def at(self, positions: Mapping[Partition, Offset]) -> None:
        """Positions must be requested after the ends."""
        for partition, position in positions.items():
            reached = self._reached.get(partition)
            if reached is not None and position < reached.end:
                del self._reached[partition]  # recopied
            line = self._waiting.get(partition, [])
            done = [look for look in line if look.end <= position]
            if done:
                self._reached[partition] = done[-1]
                self._waiting[partition] = line[len(done) :]

    def keep(self, partitions: Collection[Partition]) -> None:
        self._waiting = {p: line for p, line in self._waiting.items() if p in partitions}
        self._reached = {p: look for p, look in self._reached.items() if p in partitions}

    def unreached(self) -> dict[Partition, int]:
        """Lagging partitions: wall clock since when something observed is missing; at the latest, for older
        lags."""
        return {p: self._reached[p].at_ms if p in self._reached else n[0].at_ms for p, n in self._waiting.items() if n}

    def since(self) -> dict[Partition, int]:
        """Lagging partitions: wall clock of the newest observation that was reached."""
        return {p: self._reached[p].at_ms for p, line in self._waiting.items() if line and p in self._reached}

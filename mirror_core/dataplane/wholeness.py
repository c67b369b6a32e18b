"""Until when each partition is whole on the destination: the newest look at the source whose end has been copied. Pure.

A position goes on after the last look, so what was whole stays so: whoever asks later gets a lower estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.model.sighting import Seen

MOST: Final = 8
"""Looks that are remembered of a partition that is far behind, of which there may be 50,000; of more, every other one
is forgotten."""


class Wholeness:
    """Of one mirror's partitions. `before`: what an earlier process knew of those that were behind."""

    def __init__(self, before: Mapping[Partition, int] = MappingProxyType({})) -> None:
        self._waiting: dict[Partition, list[Seen]] = {}
        """Looks whose end has not been reached yet, the oldest first."""
        self._reached = {p: Seen(Offset(0), at_ms) for p, at_ms in before.items()}
        """The newest one whose end has been."""

    def seen(self, found: Mapping[Partition, Seen]) -> None:
        """Ends of the source, just looked at."""
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
        """Whose positions it takes to know more."""
        return frozenset(p for p, line in self._waiting.items() if line)

    def at(self, positions: Mapping[Partition, Offset]) -> None:
        """How far these were copied, asked for after the ends."""
        for partition, position in positions.items():
            reached = self._reached.get(partition)
            if reached is not None and position < reached.end:
                del self._reached[partition]  # copied anew from its beginning
            line = self._waiting.get(partition, [])
            done = [look for look in line if look.end <= position]
            if done:
                self._reached[partition] = done[-1]
                self._waiting[partition] = line[len(done) :]

    def keep(self, partitions: Collection[Partition]) -> None:
        """Forget all others."""
        self._waiting = {p: line for p, line in self._waiting.items() if p in partitions}
        self._reached = {p: look for p, look in self._reached.items() if p in partitions}

    def unreached(self) -> dict[Partition, int]:
        """Of those that are behind: wall clock since when not all that was seen on the source is there; at the latest,
        for what was behind before it was ever looked at."""
        return {p: self._reached[p].at_ms if p in self._reached else n[0].at_ms for p, n in self._waiting.items() if n}

    def since(self) -> dict[Partition, int]:
        """Of those that are behind: wall clock of the newest look whose end was reached, where there is one."""
        return {p: self._reached[p].at_ms for p, line in self._waiting.items() if line and p in self._reached}

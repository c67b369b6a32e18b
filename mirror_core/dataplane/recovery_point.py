"""Recovery points: the newest observation of the source whose ends were copied, per partition. Pure.

Positions only grow after it, so a later reader gets a lower estimate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import ObservedEnd

MAX_OBSERVATIONS: Final = 8
"""Per lagging partition, of which there may be 50,000; of more, every other one is dropped."""


class RecoveryPoints:
    def __init__(self, complete_until: Mapping[Partition, int] = MappingProxyType({})) -> None:
        self._unreached: dict[Partition, list[ObservedEnd]] = {}
        self._reached = {p: ObservedEnd(Offset(0), at_ms) for p, at_ms in complete_until.items()}

    def add_observations(self, observed: Mapping[Partition, ObservedEnd]) -> None:
        for partition, observation in observed.items():
            reached = self._reached.get(partition)
            unreached = self._unreached.setdefault(partition, [])
            if not unreached and reached is not None and observation.end <= reached.end:
                self._reached[partition] = ObservedEnd(reached.end, observation.at_ms)
                continue
            unreached.append(observation)
            if len(unreached) > MAX_OBSERVATIONS:
                unreached[:] = unreached[::2]

    def get_incomplete(self) -> frozenset[Partition]:
        return frozenset(p for p, unreached in self._unreached.items() if unreached)

    def update_positions(self, positions: Mapping[Partition, Offset]) -> None:
        """Positions must be requested after the ends."""
        for partition, position in positions.items():
            reached = self._reached.get(partition)
            if reached is not None and position < reached.end:
                del self._reached[partition]  # recopied
            unreached = self._unreached.get(partition, [])
            newly_reached = [observation for observation in unreached if observation.end <= position]
            if newly_reached:
                self._reached[partition] = newly_reached[-1]
                self._unreached[partition] = unreached[len(newly_reached) :]

    def keep_only(self, partitions: Collection[Partition]) -> None:
        self._unreached = {p: unreached for p, unreached in self._unreached.items() if p in partitions}
        self._reached = {p: observation for p, observation in self._reached.items() if p in partitions}

    def get_incomplete_since(self) -> dict[Partition, int]:
        """Lagging partitions: wall clock since when something observed is missing; at the latest, for older
        lags."""
        return {
            p: self._reached[p].at_ms if p in self._reached else observations[0].at_ms
            for p, observations in self._unreached.items()
            if observations
        }

    def get_complete_until(self) -> dict[Partition, int]:
        """Lagging partitions: wall clock of the newest observation that was reached."""
        return {
            p: self._reached[p].at_ms for p, unreached in self._unreached.items() if unreached and p in self._reached
        }

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.model.names import Offset, Partition


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    topics: tuple[tuple[str, tuple[tuple[int, int], ...]], ...] = ()

    @classmethod
    def from_mapping(cls, offsets: Mapping[Partition, Offset]) -> PartitionOffsets:
        by_topic: dict[str, list[tuple[int, int]]] = {}
        for partition, offset in sorted(offsets.items()):
            by_topic.setdefault(partition.topic, []).append((partition.index, offset))
        return cls(tuple((topic, tuple(rows)) for topic, rows in by_topic.items()))

    def to_mapping(self) -> dict[Partition, Offset]:
        return {Partition(topic, index): Offset(offset) for topic, rows in self.topics for index, offset in rows}


NO_OFFSETS: Final = PartitionOffsets()

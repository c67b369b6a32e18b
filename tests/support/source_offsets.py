"""Source offsets, shared by tests."""

from __future__ import annotations

from mirror_core.model.names import Offset, Partition


def offsets(**named: int) -> dict[Partition, Offset]:
    return {Partition(name[0], int(name[1:])): Offset(value) for name, value in named.items()}

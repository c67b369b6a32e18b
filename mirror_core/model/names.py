"""Names of things. A partition sorts by topic, then by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

ClusterName = NewType("ClusterName", str)
"""The user's name for a cluster: an entry of mirrorbook.yaml or an Airflow Connection id."""

MirrorName = NewType("MirrorName", str)

Offset = NewType("Offset", int)
"""An offset of a partition. Source and destination share them: that is what a mirror is for."""


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of a topic."""

    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


def reverse_name(name: MirrorName) -> MirrorName:
    """The mirror that brings records home after this one was failed over."""
    return MirrorName(f"{name}-back")

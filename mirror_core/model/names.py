"""Names of things. A partition sorts by topic, then by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

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


_BACK: Final = "-back"

ACTIVE_TOPIC: Final = "__mirrorbook_active"
"""Says which cluster is active, for applications to follow. Each cluster has its own, so no mirror carries it."""


def reverse_name(name: MirrorName) -> MirrorName:
    """The mirror that brings records home after this one was failed over."""
    return MirrorName(f"{name}{_BACK}")


def is_way_home(name: str) -> bool:
    """Whether this is the name of a mirror that a failback makes."""
    return name.endswith(_BACK)


def base_name(name: MirrorName) -> MirrorName:
    """The name by which applications know it, wherever they are: without what marks a way home."""
    return MirrorName(name.removesuffix(_BACK) or name)


def both_ways(name: MirrorName) -> frozenset[MirrorName]:
    """A mirror and its way home, whichever of the two is given: what one has denied, the other one may lift."""
    base = base_name(name)
    return frozenset({base, reverse_name(base)})


HEARTBEATS: Final = "mirrorbook.heartbeats."
"""Beginning of the names of topics that hold heartbeats."""


def heartbeat_topic(name: MirrorName) -> str:
    """The topic of a mirror's heartbeats on its source, and so on its destination; the same for the way home."""
    return HEARTBEATS + base_name(name)


DRILL: Final = "drill."
"""Beginning of the names of mirrors that are made for a drill."""


def drill_group(name: MirrorName) -> str | None:
    """The consumer group of a drill's mirror, which no other mirror carries; None for any other mirror."""
    return f"mirrorbook.{name}" if name.startswith(DRILL) else None

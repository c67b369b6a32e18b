"""Names and offsets. Partitions sort by topic, then by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

ClusterName = NewType("ClusterName", str)

MirrorName = NewType("MirrorName", str)

Offset = NewType("Offset", int)
"""Equal on source and destination."""


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    topic: str
    index: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"


_BACK: Final = "-back"

ACTIVE_TOPIC: Final = "__mirrorbook_active"
"""Each cluster has its own; it is never mirrored."""


def reverse_name(name: MirrorName) -> MirrorName:
    """The mirror that a failback makes."""
    return MirrorName(f"{name}{_BACK}")


def is_way_home(name: str) -> bool:
    return name.endswith(_BACK)


def base_name(name: MirrorName) -> MirrorName:
    """Without the suffix of a reverse mirror."""
    return MirrorName(name.removesuffix(_BACK) or name)


def both_ways(name: MirrorName) -> frozenset[MirrorName]:
    """Each of the two may lift the other's denials."""
    base = base_name(name)
    return frozenset({base, reverse_name(base)})


HEARTBEATS: Final = "mirrorbook.heartbeats."


def heartbeat_topic(name: MirrorName) -> str:
    """Same topic for both directions."""
    return HEARTBEATS + base_name(name)


DRILL: Final = "drill."


def drill_group(name: MirrorName) -> str | None:
    """No other mirror syncs it. None: not a drill."""
    return f"mirrorbook.{name}" if name.startswith(DRILL) else None

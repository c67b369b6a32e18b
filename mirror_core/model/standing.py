"""What a mirror owes a cluster that was failed away from: a fence that stands, or one that is taken down again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.offsets import NO_OFFSETS, Offsets


class Owed(StrEnum):
    FENCE = "fence"
    """Applications have moved: the cluster must take no writes of the mirror's topics when it answers again."""
    UNFENCE = "unfence"
    """A run was given up while the cluster was silent: its denials there are to be taken away when it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """One for a mirror at most: a later one replaces it. A fence that is paid stands, and is looked after."""

    mirror: MirrorName
    cluster: ClusterName
    owed: Owed
    run: str
    """The run that left it."""
    since_ms: int
    paid_ms: int | None = None
    """When every broker was seen to have it; None: not yet."""
    ends: Offsets = NO_OFFSETS
    """Of a fence that is paid: log ends (next to be written) when it was seen to hold. What lies between the last
    mirrored offset and them slipped in before."""
    unsaid: tuple[str, ...] = ()
    """Alarms that no later look would find again, until somebody is known to have been told of them."""
    by_command: bool = False
    """Of a fence that is paid, or is to be lifted: the cluster's `fence_command` put it up, and no broker shows it."""
    trouble: str = ""
    """Why it could not be paid when it was tried last, or what is wrong with it since."""

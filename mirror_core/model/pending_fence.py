"""A fence that Mirrorbook will apply to, keeps on, or will lift from an old source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.findings import Finding
from mirror_core.model.names import NO_OFFSETS, ClusterName, MirrorName, PartitionOffsets


class FenceAction(StrEnum):
    APPLY = "apply"
    """Deny writes to the mirror's topics once the cluster answers."""
    LIFT = "lift"
    """Remove the denials of an abandoned run once the cluster answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFence:
    """At most one per mirror; a later one replaces it. An applied fence stays and is watched."""

    mirror: MirrorName
    cluster: ClusterName
    action: FenceAction
    run: str
    since_ms: int
    applied_at_ms: int | None = None
    """When every broker showed it."""
    log_ends: PartitionOffsets = NO_OFFSETS
    """Log ends when the applied fence was verified. Records from the LMO up to them are late writes."""
    unreported: tuple[str, ...] = ()
    """They cannot be detected again."""
    by_command: bool = False
    """`fence_command` applied it; brokers do not show it."""
    trouble: Finding | None = None
    """Why the last attempt failed, or what is wrong since."""

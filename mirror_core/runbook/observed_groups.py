"""A cluster's consumer groups, as far as a plan has time to read them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror_core.decide.filters import build_group_filter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.group_batches import fetch_group_offsets
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.model.errors import Unreachable
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Offset, Partition

_GROUPS_PER_REQUEST: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGroups:
    ids: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Those without offsets, with their kind."""
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    """Next offsets to read, on the mirror's topics."""
    joined: tuple[str, ...] = ()
    unread: int = 0
    """Could not be read in time."""


def observe_groups(client: ClusterClient, mirror: Mirror, topics: Collection[str], *, offsets: bool) -> ObservedGroups:
    chosen = build_group_filter(mirror)
    matching_groups = [group for name, group in sorted(list_groups(client).items()) if name in chosen]
    groups = [g for g in matching_groups if g.kind in OFFSET_KINDS]
    committed: dict[str, Mapping[Partition, Offset]] = {}
    deadline, unread = time.monotonic() + TIMEOUTS.plan_groups_s, 0
    for start in range(0, len(groups) if offsets else 0, _GROUPS_PER_REQUEST):
        if time.monotonic() > deadline:
            unread += len(groups) - start
            break
        fetched = fetch_group_offsets(client, groups[start : start + _GROUPS_PER_REQUEST])
        for error in fetched.faults.values():
            if isinstance(error, Unreachable):
                raise error
        unread += len(fetched.faults)
        for name, group_offsets in fetched.offsets.items():
            if topic_offsets := {p: c.offset for p, c in group_offsets.committed.items() if p.topic in topics}:
                committed[name] = topic_offsets
    return ObservedGroups(
        ids=tuple(g.id for g in groups),
        others=tuple(f"{g.id} ({g.kind})" for g in matching_groups if g.kind not in OFFSET_KINDS),
        committed=committed,
        joined=tuple(g.id for g in groups if g.id in committed and not g.is_idle),
        unread=unread,
    )


def observe_cluster_groups(cluster: ClusterConfig, mirror: Mirror, topics: Collection[str]) -> ObservedGroups:
    """By connections of its own: a hanging coordinator must delay nothing else."""
    with ClusterClient(cluster, timeout_s=TIMEOUTS.plan_response_s) as client:
        return observe_groups(client, mirror, topics, offsets=True)

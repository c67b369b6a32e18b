"""A cluster's consumer groups, as far as a plan has time to read them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirror_core.decide.filters import group_filter
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.group_batches import fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.model.errors import Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Offset, Partition

_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    ids: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Those without offsets, with their kind."""
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    """Next offsets to read, on the mirror's topics."""
    joined: tuple[str, ...] = ()
    unread: int = 0
    """Could not be read in time."""


def observed_groups(client: ClusterClient, mirror: Mirror, topics: Collection[str], *, offsets: bool) -> Groups:
    chosen = group_filter(mirror)
    known = [group for name, group in sorted(list_groups(client).items()) if name in chosen]
    groups = [g for g in known if g.kind in OFFSET_KINDS]
    committed: dict[str, Mapping[Partition, Offset]] = {}
    deadline, unread = time.monotonic() + LIMITS.planned_groups_s, 0
    for start in range(0, len(groups) if offsets else 0, _AT_ONCE):
        if time.monotonic() > deadline:
            unread += len(groups) - start
            break
        fetched = fetch_all(client, groups[start : start + _AT_ONCE])
        for error in fetched.faults.values():
            if isinstance(error, Unreachable):
                raise error
        unread += len(fetched.faults)
        for name, one in fetched.offsets.items():
            if mine := {p: c.offset for p, c in one.committed.items() if p.topic in topics}:
                committed[name] = mine
    return Groups(
        ids=tuple(g.id for g in groups),
        others=tuple(f"{g.id} ({g.kind})" for g in known if g.kind not in OFFSET_KINDS),
        committed=committed,
        joined=tuple(g.id for g in groups if g.id in committed and not g.idle),
        unread=unread,
    )


def groups_on(cluster: ClusterConfig, mirror: Mirror, topics: Collection[str]) -> Groups:
    """By connections of its own: a hanging coordinator must delay nothing else."""
    with ClusterClient(cluster, timeout_s=LIMITS.planned_answer_s) as client:
        return observed_groups(client, mirror, topics, offsets=True)

"""Which mirrors carry the same topics from the same source to a third cluster: a failover leaves those behind, and a
failback may take away what they have copied."""

from __future__ import annotations

from collections.abc import Collection

from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName
from mirror_core.state.link import Link, states_beside


def look_beside(link: Link, topics: Collection[str], found: list[tuple[Mirror, frozenset[str]]]) -> list[ClusterName]:
    """Add those that are not stopped, with which of these topics they have, as their destinations answer. Returns
    clusters that do not."""
    silent = list[ClusterName]()
    for cluster, answer in states_beside(link):
        if isinstance(answer, MirrorError):
            silent.append(cluster)
            continue
        for mirror in answer.mirrors.values():
            shared = {p.topic for p in answer.partitions.get(mirror.name, {})} & frozenset(topics)
            alike = (mirror.source, mirror.destination) == (link.mirror.source, cluster)
            if shared and alike and mirror.desired is not Desired.STOPPED:
                found.append((mirror, frozenset(shared)))
    return silent

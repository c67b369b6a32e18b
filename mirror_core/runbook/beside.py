"""Reads both clusters of a mirror for a plan, and its sibling mirrors to third clusters."""

from __future__ import annotations

from collections.abc import Collection

from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName
from mirror_core.state.link import Link, states_beside


def look_beside(link: Link, topics: Collection[str], found: list[tuple[Mirror, frozenset[str]]]) -> list[ClusterName]:
    """Append mirrors that are not stopped, with shared topics; returns clusters that do not answer."""
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

"""Reads both clusters of a mirror for a plan, and its sibling mirrors to third clusters."""

from __future__ import annotations

from collections.abc import Collection

from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName
from mirror_core.state.link import MirrorLink, read_other_states


def find_sibling_mirrors(
    link: MirrorLink, topics: Collection[str], siblings: list[tuple[Mirror, frozenset[str]]]
) -> list[ClusterName]:
    """Append mirrors that are not stopped, with shared topics; returns clusters that do not answer."""
    silent_clusters = list[ClusterName]()
    for cluster, reply in read_other_states(link):
        if isinstance(reply, MirrorError):
            silent_clusters.append(cluster)
            continue
        for mirror in reply.mirrors.values():
            shared_topics = {p.topic for p in reply.partitions.get(mirror.name, {})} & frozenset(topics)
            is_sibling = (mirror.source, mirror.destination) == (link.mirror.source, cluster)
            if shared_topics and is_sibling and mirror.desired is not DesiredState.STOPPED:
                siblings.append((mirror, frozenset(shared_topics)))
    return silent_clusters

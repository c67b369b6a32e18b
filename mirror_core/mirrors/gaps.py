"""Creates a mirror: gap method, copy estimate, checks, one record."""

from __future__ import annotations

import time
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.rights import may_mark
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import Gaps, Mirror
from mirror_core.state.link import Link

FAR_S: Final = 0.01
"""50 transactions a second of each partition with markers."""


def gaps_on(destination: ClusterConfig) -> Gaps:
    """ADRs 0008, 0010."""
    with ClusterClient(destination, Principal.DATA) as client:
        return Gaps.MARKERS if may_mark(client) else Gaps.HIDDEN


def chosen_gaps(destination: ClusterConfig, choice: Gaps | None) -> Gaps:
    """Refused for markers that may not be written."""
    if choice is Gaps.HIDDEN:
        return choice
    possible = gaps_on(destination)
    if choice is Gaps.MARKERS and possible is not choice:
        user = destination.user(Principal.DATA) or "its data principal"
        reason = f"cluster {destination.name}: {user} may not write markers: grant it CLUSTER_ACTION on the cluster"
        raise Refused("mirror with gaps filled by markers", [reason])
    return possible


def gaps_home(mirror: Mirror, link: Link) -> Gaps:
    """Hidden records where they were chosen: the distance is the same."""
    if mirror.gaps is Gaps.HIDDEN and gaps_on(link.destination) is Gaps.MARKERS:
        return Gaps.HIDDEN
    return gaps_on(link.source)


def limit_in_words(destination: ClusterConfig, gaps: Gaps) -> str:
    """Markers take two round trips a gap."""
    if gaps is Gaps.HIDDEN:
        return ""
    with ClusterClient(destination, Principal.DATA) as client:
        client.metadata(())
        asked = time.monotonic()
        client.metadata(())
        took = time.monotonic() - asked
    if took < FAR_S:
        return ""
    return (
        f"an answer from {destination.name} takes {1000 * took:.0f} ms: with markers at most {1 / (2 * took):.0f} "
        "transactions a second of each partition come over; with hidden records (`--gaps hidden`) as many as there are"
    )

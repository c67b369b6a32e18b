"""How a mirror is to fill the gaps of its copy: by what its data principal may do, and by the operator's choice.

See ADRs 0008 and 0010. Markers are part of the protocol, and need two round trips for each gap of a partition; hidden
records rest on what brokers don't check, and go with the data, however far that is.
"""

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
"""A round trip that limits a partition to 50 transactions a second: from here on the choice is pointed out."""


def gaps_on(destination: ClusterConfig) -> Gaps:
    """Markers where the data principal may write them, else hidden records."""
    with ClusterClient(destination, Principal.DATA) as client:
        return Gaps.MARKERS if may_mark(client) else Gaps.HIDDEN


def chosen_gaps(destination: ClusterConfig, choice: Gaps | None) -> Gaps:
    """What the operator wants; None: as rights allow. Refused when markers are wanted that may not be written."""
    if choice is Gaps.HIDDEN:
        return choice
    possible = gaps_on(destination)
    if choice is Gaps.MARKERS and possible is not choice:
        user = destination.user(Principal.DATA) or "its data principal"
        reason = f"cluster {destination.name}: {user} may not write markers: grant it CLUSTER_ACTION on the cluster"
        raise Refused("mirror with gaps filled by markers", [reason])
    return possible


def gaps_home(mirror: Mirror, link: Link) -> Gaps:
    """For the way back to the source: it is as far as the way there, so who chose hidden records wants them again."""
    if mirror.gaps is Gaps.HIDDEN and gaps_on(link.destination) is Gaps.MARKERS:
        return Gaps.HIDDEN
    return gaps_on(link.source)


def limit_in_words(destination: ClusterConfig, gaps: Gaps) -> str:
    """What the distance to the destination means for gaps filled so; empty where it means little."""
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

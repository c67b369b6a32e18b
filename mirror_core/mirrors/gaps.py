"""Creates a mirror: gap method, copy estimate, checks, one record."""

from __future__ import annotations

import time
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.rights import can_write_markers
from mirror_core.model.errors import Refused
from mirror_core.model.mirror import GapFilling, Mirror
from mirror_core.state.link import MirrorLink

SLOW_ROUND_TRIP_S: Final = 0.01
"""50 transactions a second of each partition with markers."""


def find_gap_method(destination: ClusterConfig) -> GapFilling:
    """ADRs 0008, 0010."""
    with ClusterClient(destination, Principal.DATA) as client:
        return GapFilling.MARKERS if can_write_markers(client) else GapFilling.HIDDEN


def choose_gap_method(destination: ClusterConfig, choice: GapFilling | None) -> GapFilling:
    """Refused for markers that may not be written."""
    if choice is GapFilling.HIDDEN:
        return choice
    possible = find_gap_method(destination)
    if choice is GapFilling.MARKERS and possible is not choice:
        user = destination.user(Principal.DATA) or "its data principal"
        reason = f"cluster {destination.name}: {user} may not write markers: grant it CLUSTER_ACTION on the cluster"
        raise Refused("mirror with gaps filled by markers", [reason])
    return possible


def choose_reverse_gap_method(mirror: Mirror, link: MirrorLink) -> GapFilling:
    """Hidden records where they were chosen: the distance is the same."""
    if mirror.gaps is GapFilling.HIDDEN and find_gap_method(link.destination) is GapFilling.MARKERS:
        return GapFilling.HIDDEN
    return find_gap_method(link.source)


def format_gap_limit(destination: ClusterConfig, gaps: GapFilling) -> str:
    """Markers take two round trips a gap."""
    if gaps is GapFilling.HIDDEN:
        return ""
    with ClusterClient(destination, Principal.DATA) as client:
        client.metadata(())
        sent_at = time.monotonic()
        client.metadata(())
        round_trip_s = time.monotonic() - sent_at
    if round_trip_s < SLOW_ROUND_TRIP_S:
        return ""
    return (
        f"an answer from {destination.name} takes {1000 * round_trip_s:.0f} ms: with markers at most {1 / (2 * round_trip_s):.0f} "
        "transactions a second of each partition come over; with hidden records (`--gaps hidden`) as many as there are"
    )

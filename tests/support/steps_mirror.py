"""Steps mirror, shared by tests."""

from __future__ import annotations

from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName

MIRROR = Mirror(
    name=MirrorName("m"),
    source=ClusterName("ea{st}"),
    destination=ClusterName("west"),
    source_id="E",
    destination_id="W",
    topics=("orders",),
    producer_id=1 << 62,
    desired=DesiredState.STARTED,
    created_ms=1,
)

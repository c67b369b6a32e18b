"""What a task of the data plane is given, where a test is about something else."""

from __future__ import annotations

import time

from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.task_messages import Assignment, PartitionAssignment

LONG_S = 600.0


def assignment(*partitions: PartitionAssignment, stop_s: float = LONG_S, throttle: int | None = None) -> Assignment:
    """Of mirror m, from east to west. `stop_s`: seconds from now; `throttle`: bytes per second."""
    return Assignment(
        mirror=MirrorName("m"),
        source=ClusterName("east"),
        destination=ClusterName("west"),
        config_path="",
        producer_id=1 << 62,
        partitions=partitions,
        epoch=1,
        task=0,
        start_ms=0,
        stop_ms=int(1000 * (time.time() + stop_s)),
        throttle=throttle,
    )

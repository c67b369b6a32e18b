"""Fence states, shared by tests."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.decide.fence_state import (
    FenceObservation,
)
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence

P, Q = Partition("t", 0), Partition("t", 1)

ENDS = PartitionOffsets.from_mapping({P: Offset(100)})

OWED = PendingFence(
    mirror=MirrorName("m"), cluster=ClusterName("east"), action=FenceAction.APPLY, run="r", since_ms=1_000
)

STANDS = replace(OWED, applied_at_ms=2_000, log_ends=ENDS)

WATCHED = replace(OWED, log_ends=ENDS, trouble=Finding("fence_unavailable", "east", authorizer="kafka", partitions=()))

LIFTING = replace(OWED, action=FenceAction.LIFT)

WELL = FenceObservation(barred=WriteBarrier.DENY_ACLS, log_ends={P: Offset(100)})


def status(partition: Partition, lmo: int | None, reason: str | None = None) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        state=PartitionState.STOPPED,
        source_topic_id="1",
        destination_topic_id="2",
        lmo=None if lmo is None else Offset(lmo),
        reason=reason,
    )

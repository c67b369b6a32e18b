"""Source returns, shared by tests."""

from __future__ import annotations

from mirror_core.model.names import ClusterName, Offset, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from tests.support.fence_commands import MIRROR
from tests.support.quiescence import SHORT, WELL

TAKEN = PartitionOffsets.from_mapping({WELL: Offset(510), SHORT: Offset(508)})
"""Applications have written 500 records to each partition of the source."""

# -- the source is back while people see to the destination ------------------------------------------------------------


def debt(ends: PartitionOffsets) -> PendingFence:
    return PendingFence(
        mirror=MIRROR.name,
        cluster=ClusterName("east"),
        action=FenceAction.APPLY,
        run="r",
        since_ms=0,
        applied_at_ms=1,
        log_ends=ends,
    )

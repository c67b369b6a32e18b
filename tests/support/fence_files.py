"""Fence files, shared by tests."""

from __future__ import annotations

from mirror_core.evidence.fence_file import (
    FenceFile,
)
from mirror_core.model.names import ClusterName, MirrorName

FENCE = FenceFile(
    run="m-failover-1", mirror=MirrorName("m"), cluster=ClusterName("east"), cluster_id="abc",
    destination=ClusterName("west"), written_ms=7, topics=("orders", "a.b_c-1"), transactional_ids=("tx-1", "*", "ü"),
)  # fmt: skip

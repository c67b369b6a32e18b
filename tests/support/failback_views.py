"""Failback views, shared by tests."""

from __future__ import annotations

import pytest

from mirror_core.decide.failback_plan import (
    FailbackSnapshot,
    NewPrimary,
    OldSource,
)
from mirror_core.decide.mirror_snapshot import ClusterTopic
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.pending_fence import FenceAction, PendingFence

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)

OLD, NEW = "a" * 32, "b" * 32


def stopped(partition: Partition, lmo: int) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        state=PartitionState.STOPPED,
        source_topic_id=OLD,
        destination_topic_id=NEW,
        lmo=Offset(lmo),
    )


@pytest.fixture
def view() -> FailbackSnapshot:
    return FailbackSnapshot(
        mirror=Mirror(
            name=MirrorName("m"),
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="E",
            destination_id="W",
            topics=("a", "b"),
            producer_id=1 << 62,
            desired=DesiredState.STOPPED,
            created_ms=1,
        ),
        statuses={A0: stopped(A0, 10), A1: stopped(A1, 20), B0: stopped(B0, 5)},
        old_source=OldSource(
            cluster_id="E",
            topics={"a": ClusterTopic(id=OLD, partitions=2), "b": ClusterTopic(id=OLD, partitions=1)},
            log_ends={A0: Offset(10), A1: Offset(23), B0: Offset(4)},
            fenced=True,
        ),
        new_primary=NewPrimary(
            cluster_id="W",
            topics={"a": ClusterTopic(id=NEW, partitions=2), "b": ClusterTopic(id=NEW, partitions=1)},
            log_ends={A0: Offset(50), A1: Offset(20), B0: Offset(6)},
        ),
        active_runs=(),
        pending_fence=PendingFence(
            mirror=MirrorName("m"),
            cluster=ClusterName("east"),
            action=FenceAction.APPLY,
            run="r",
            since_ms=1,
            applied_at_ms=2,
        ),
    )

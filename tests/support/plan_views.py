"""Plan views, shared by tests."""

from __future__ import annotations

import pytest

from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
)
from mirror_core.decide.plan_figures import list_plan_figures, list_plan_warnings
from mirror_core.model.acl import Acl, Operation, Pattern, Permission, Resource
from mirror_core.model.figures import Figures
from mirror_core.model.mirror import (
    DesiredState,
    Lease,
    Mirror,
    PartitionState,
    PartitionStatus,
)
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import RunMode

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)


def status(partition: Partition, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    return PartitionStatus(partition=partition, state=state, source_topic_id="s", destination_topic_id="d")


SOURCE = SourceSnapshot(
    cluster_id="E",
    topics={"a": ClusterTopic(id="s", partitions=2), "b": ClusterTopic(id="s", partitions=1)},
    stable_ends={A0: Offset(100), A1: Offset(50), B0: Offset(10)},
    authorizer=True,
    transactions=(),
    groups=("g", "h"),
    committed={"g": {A0: Offset(90), A1: Offset(50)}, "h": {B0: Offset(3)}},
)

DESTINATION = DestinationSnapshot(
    cluster_id="W",
    topics={"a": ClusterTopic(id="d", partitions=2), "b": ClusterTopic(id="d", partitions=1)},
    positions={A0: Offset(93), A1: Offset(20), B0: Offset(10)},
    authorizer=True,
    committed={"g": {A0: Offset(88), A1: Offset(20)}, "h": {B0: Offset(5)}},
)

WRITE = Acl(
    resource=Resource.TOPIC,
    name="a",
    pattern=Pattern.LITERAL,
    principal="User:app",
    operation=Operation.WRITE,
    permission=Permission.ALLOW,
)

LEASE = Lease(mirror=MirrorName("m"), owner="host-7", generation=1, heartbeat_ms=100_000, writers_until_ms=2_000)


@pytest.fixture
def view() -> MirrorSnapshot:
    return MirrorSnapshot(
        mirror=Mirror(
            name=MirrorName("m"),
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="E",
            destination_id="W",
            topics=("a", "b"),
            producer_id=1 << 62,
            desired=DesiredState.STARTED,
            created_ms=1,
        ),
        mode=RunMode.PLANNED,
        statuses={p: status(p) for p in (B0, A1, A0)},
        source=SOURCE,
        destination=DESTINATION,
        lease=LEASE,
        active_run=None,
        grants=("one", "two"),
        promotion_grants=(WRITE,),
        forecast=None,
        now_ms=103_000,
    )


def shown(view: MirrorSnapshot) -> Figures:
    return dict(list_plan_figures(view))


def warned(view: MirrorSnapshot) -> str:
    return "\n".join(map(str, list_plan_warnings(view)))

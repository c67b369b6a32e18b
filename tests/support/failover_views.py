"""Failover views, shared by tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.failover_plan import decide_failover
from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
)
from mirror_core.model.config_sections import AuthorizerConfig, AuthorizerKind
from mirror_core.model.hooks import Hook, HookCommand
from mirror_core.model.mirror import DesiredState, Lease, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import RunMode

P0, P1 = Partition("orders", 0), Partition("orders", 1)

SRC, DST = "a" * 32, "b" * 32


def status(partition: Partition, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    reason = "damaged: recover it" if state is PartitionState.FAILED else None
    return PartitionStatus(
        partition=partition, state=state, source_topic_id=SRC, destination_topic_id=DST, reason=reason
    )


def healthy_view() -> MirrorSnapshot:
    return MirrorSnapshot(
        mirror=Mirror(
            name=MirrorName("m"),
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="E",
            destination_id="W",
            topics=(".*",),
            producer_id=1 << 62,
            desired=DesiredState.STARTED,
            created_ms=1,
        ),
        mode=RunMode.PLANNED,
        statuses={P0: status(P0), P1: status(P1)},
        source=SourceSnapshot(
            cluster_id="E",
            topics={"orders": ClusterTopic(id=SRC, partitions=2)},
            stable_ends={P0: Offset(10), P1: Offset(20)},
            authorizer=True,
            transactions=(),
            groups=("g",),
            committed={"g": {P0: Offset(8)}},
        ),
        destination=DestinationSnapshot(
            cluster_id="W",
            topics={"orders": ClusterTopic(id=DST, partitions=2)},
            positions={P0: Offset(10), P1: Offset(15)},
            authorizer=True,
            committed={"g": {P0: Offset(5)}},
        ),
        lease=Lease(mirror=MirrorName("m"), owner="x", generation=1, heartbeat_ms=1_000, writers_until_ms=2_000),
        active_run=None,
        grants=("ALLOW WRITE",),
        forecast=None,
        now_ms=2_000,
    )


@pytest.fixture
def view() -> MirrorSnapshot:
    return healthy_view()


def source_of(view: MirrorSnapshot) -> SourceSnapshot:
    assert isinstance(view.source, SourceSnapshot)
    return view.source


def reasons_of(view: MirrorSnapshot) -> str:
    return "\n".join(map(str, decide_failover(view).reasons))


NOT_KAFKAS = AuthorizerConfig(authorizer=AuthorizerKind.FOREIGN)

COMMAND = Hook(name="fence_command", call=HookCommand(("/bin/close",)))

CLOSABLE = replace(NOT_KAFKAS, fence_command=COMMAND, unfence_command=replace(COMMAND, name="unfence_command"))


def foreign(
    view: MirrorSnapshot, here: AuthorizerConfig = NOT_KAFKAS, there: AuthorizerConfig = NOT_KAFKAS
) -> MirrorSnapshot:
    source, destination = view.source, view.destination
    if isinstance(source, SourceSnapshot):
        source = replace(source, authorizer=False)
    if isinstance(destination, DestinationSnapshot):
        destination = replace(destination, authorizer=False)
    return replace(view, source_authorizer=here, destination_authorizer=there, source=source, destination=destination)

"""Readiness views, shared by tests."""

from __future__ import annotations

from mirror_core.decide.mirror_snapshot import (
    ClusterTopic,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
)
from mirror_core.model.mirror import DesiredState, GroupSyncTime, Lease, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import MirrorVerification, VerifiedEnd
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import Heartbeat, ObservedTopic, SourceObservation

A0, A1 = Partition("a", 0), Partition("a", 1)

NAME = MirrorName("m")


def status(partition: Partition) -> PartitionStatus:
    state = PartitionState.MIRRORING
    return PartitionStatus(partition=partition, state=state, source_topic_id="s", destination_topic_id="d")


SOURCE = SourceSnapshot(
    cluster_id="E",
    topics={"a": ClusterTopic(id="s", partitions=2)},
    stable_ends={A0: Offset(100), A1: Offset(50)},
    authorizer=True,
    transactions=(),
)

DESTINATION = DestinationSnapshot(
    cluster_id="W",
    topics={"a": ClusterTopic(id="d", partitions=2)},
    positions={A0: Offset(93), A1: Offset(50)},
    authorizer=True,
    heartbeats=(Heartbeat(partition=0, number=1, at_ms=98_000, mirror="m", driver="d"),),
)

VIEW = MirrorSnapshot(
    mirror=Mirror(
        name=NAME,
        source=ClusterName("east"),
        destination=ClusterName("west"),
        source_id="E",
        destination_id="W",
        topics=("a",),
        producer_id=1 << 62,
        desired=DesiredState.STARTED,
        created_ms=1,
    ),
    mode=RunMode.PLANNED,
    statuses={p: status(p) for p in (A0, A1)},
    source=SOURCE,
    destination=DESTINATION,
    lease=Lease(mirror=NAME, owner="host-7", generation=1, heartbeat_ms=99_000, writers_until_ms=2_000),
    active_run=None,
    grants=(),
    forecast=None,
    now_ms=100_000,
    source_observation=SourceObservation(mirror=NAME, at_ms=99_500, topics=(ObservedTopic(topic="a", ends=(97, 50)),)),
    verification=MirrorVerification.from_partitions(
        NAME, {A0: VerifiedEnd(60, 0, 40_000, 60), A1: VerifiedEnd(70, 0, 30_000, 70)}, {"a": "d"}
    ),
    groups=GroupSyncTime(mirror=NAME, synced_ms=99_000, followed=True),
)

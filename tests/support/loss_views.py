"""Loss views, shared by tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.mirror_snapshot import ClusterTopic, DestinationSnapshot, MirrorSnapshot, UnseenCluster
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.source_observation import (
    Heartbeat,
    ObservedTopic,
    SourceObservation,
)

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)

M = MirrorName("m")


def status(partition: Partition, reason: str | None = None) -> PartitionStatus:
    state = PartitionState.FAILED if reason else PartitionState.MIRRORING
    return PartitionStatus(
        partition=partition, state=state, reason=reason, source_topic_id="s", destination_topic_id="d"
    )


def cut_at_60(view: MirrorSnapshot) -> MirrorSnapshot:
    """Somebody has deleted the beginning of a-0 on the destination, and only there."""
    whole = replace(status(A0), source_start=Offset(0), followed_start=Offset(0))
    assert isinstance(view.destination, DestinationSnapshot)
    destination = replace(view.destination, log_starts={A0: Offset(60)})
    return replace(view, statuses={**view.statuses, A0: whole}, destination=destination)


def beat(partition: int, at_ms: int) -> Heartbeat:
    return Heartbeat(partition=partition, number=7, at_ms=at_ms, mirror="m", driver="host/1")


SIGHTING = SourceObservation(
    mirror=M,
    at_ms=100_000,
    topics=(ObservedTopic(topic="a", ends=(100, 50), ages_ms=(0, 2_000)), ObservedTopic(topic="b", ends=(10,))),
    listed_ms=100_000,
    transactions_ms=100_000,
)

DESTINATION = DestinationSnapshot(
    cluster_id="W",
    topics={"a": ClusterTopic(id="d", partitions=2), "b": ClusterTopic(id="d", partitions=1)},
    positions={A0: Offset(93), A1: Offset(20), B0: Offset(11)},
    authorizer=True,
    heartbeats=(beat(0, 99_000), beat(1, 98_500)),
)


@pytest.fixture
def view() -> MirrorSnapshot:
    return MirrorSnapshot(
        mirror=Mirror(
            name=M,
            source=ClusterName("east"),
            destination=ClusterName("west"),
            source_id="E",
            destination_id="W",
            topics=("a", "b"),
            producer_id=1 << 62,
            desired=DesiredState.STARTED,
            created_ms=1,
        ),
        mode=RunMode.UNPLANNED,
        statuses={p: status(p) for p in (B0, A1, A0)},
        source=UnseenCluster("dead"),
        destination=DESTINATION,
        lease=None,
        active_run=None,
        grants=(),
        forecast=None,
        now_ms=104_000,
        source_observation=SIGHTING,
    )

"""Metric reports, shared by tests."""

from __future__ import annotations

from mirror_core.dataplane.counters import Counters
from mirror_core.decide.failover_readiness import FreshnessKind
from mirror_core.model.mirror import DesiredState, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.task_messages import Receipt, TaskReport

EAST, WEST = ClusterName("east"), ClusterName("west")

MIRROR = Mirror(
    name=MirrorName("m"),
    source=EAST,
    destination=WEST,
    source_id="e",
    destination_id="w",
    topics=(".*",),
    producer_id=2**62,
    desired=DesiredState.STARTED,
    created_ms=0,
)


def status(partition: Partition, state: PartitionState = PartitionState.MIRRORING) -> PartitionStatus:
    return PartitionStatus(partition=partition, state=state, source_topic_id="s", destination_topic_id="d")


def counters(*statuses: PartitionStatus) -> Counters:
    made = Counters()
    made.set_recorded(statuses, throttle=None, known_ms={FreshnessKind.GROUPS: 1_500, FreshnessKind.DRILL: 2_000})
    return made


def report(partition: Partition, first: int, records: int, size: int, retry: str = "") -> TaskReport:
    receipt = Receipt(
        mirror=MIRROR.name,
        partition=partition,
        epoch=1,
        task=0,
        first=Offset(first),
        next=Offset(first + 2 * records),
        records=records,
        gaps=records,
        batches=3,
        bytes=size,
        pieces=(),
        source_topic_id="",
        destination_topic_id="",
        source_end=None,
        started_ms=0,
        ended_ms=1,
    )
    return TaskReport(receipts=(receipt,), failures=(), cpu_s=0.5, retry_reason=retry)

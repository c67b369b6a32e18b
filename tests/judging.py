"""A verdict on a partition, taken in at once."""

from __future__ import annotations

from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.verdict import Judge, Logs, take_in, unsure_since
from mirror_core.decide.position import Seen
from mirror_core.model.names import ClusterName

EAST, WEST = ClusterName("east"), ClusterName("west")


def decide(logs: Logs, one: PartitionReplicator, seen: Seen, agreed: int | None = None) -> None:
    judge = Judge(source=EAST, destination=WEST, logs=logs)
    take_in(one, judge.verdict(one, seen, unsure_since(one, seen, agreed)), EAST)

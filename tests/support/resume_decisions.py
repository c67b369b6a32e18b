"""A verdict on a partition, taken in at once."""

from __future__ import annotations

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.resume_decision import LogInspector, ResumeDecider, apply_decision, find_comparison_start
from mirror_core.decide.gaps_and_resume import BothLogBounds
from mirror_core.model.names import ClusterName

EAST, WEST = ClusterName("east"), ClusterName("west")


def decide(logs: LogInspector, one: PartitionReplicator, seen: BothLogBounds, agreed: int | None = None) -> None:
    judge = ResumeDecider(source=EAST, destination=WEST, inspector=logs)
    apply_decision(one, judge.decide(one, seen, find_comparison_start(one, seen, agreed)), EAST)

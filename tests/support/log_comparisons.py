"""Log comparisons, shared by tests."""

from __future__ import annotations

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.decide.gaps_and_resume import BothLogBounds, OwnProducerState
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import PartitionAssignment

SEEN = BothLogBounds(log_start=0, log_end=10, producer=OwnProducerState(10, -1), source_start=0, source_end=20)


def replicator(index: int) -> PartitionReplicator:
    assigned = PartitionAssignment(
        partition=Partition("orders", index),
        source_topic_id="",
        destination_topic_id="",
        source_epoch=1,
        all_answered=True,
    )
    made = PartitionReplicator(assigned)
    made.set_leaders(1, 2, 1)
    return made

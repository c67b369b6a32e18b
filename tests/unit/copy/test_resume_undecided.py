"""Both logs are compared, and the source does not show all of it yet: why, and when it is looked at again."""

from __future__ import annotations

from typing import cast

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import ComparisonUndecided, LogInspector
from mirror_core.decide.gaps_and_resume import NO_KNOWN_OFFSET, BothLogBounds, OwnProducerState
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment
from tests.support.resume_decisions import decide

P = Partition("orders", 0)
SEEN = BothLogBounds(log_start=0, log_end=10, producer=OwnProducerState(10, -1), source_start=0, source_end=20)


class Open:
    """The source has a transaction open below the position."""

    compared = 0

    def find_first_divergence(self, partition: Partition, position: int, agreed_end: int | None) -> Offset | None:
        self.compared += 1
        raise ComparisonUndecided(f"cluster east, {partition}: readable up to 5 only, and copied to {position}")


def test_a_comparison_that_cannot_end_yet_says_why_and_is_repeated_less_and_less_often() -> None:
    now, logs = 0.0, Open()
    assigned = PartitionAssignment(
        partition=P, source_topic_id="", destination_topic_id="", source_epoch=1, all_answered=True
    )
    one = PartitionReplicator(assigned, clock=lambda: now)
    one.set_leaders(1, 2, 1)
    while now < 10.0:
        if one.is_due():
            decide(cast("LogInspector", logs), one, SEEN, NO_KNOWN_OFFSET)
        now += 0.01
    assert one.state is CopyState.LOST
    assert one.lost_reason == f"cluster east, {P}: readable up to 5 only, and copied to 10"
    assert 10 < logs.compared < 20, "at most once a second in the end"

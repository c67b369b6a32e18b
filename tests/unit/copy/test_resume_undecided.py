"""Both logs are compared, and the source does not show all of it yet: why, and when it is looked at again."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import CopyState
from mirror_core.copy.resume_decision import ComparisonUndecided, LogInspector
from mirror_core.decide.gaps_and_resume import MAX_GAP_OFFSETS, NO_KNOWN_OFFSET, BothLogBounds, OwnProducerState
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment
from tests.support.resume_decisions import decide

P = Partition("orders", 0)
SEEN = BothLogBounds(log_start=0, log_end=10, producer=OwnProducerState(10, -1), source_start=0, source_end=20)


class Open:
    """The source has a transaction open below the position."""

    compared = 0

    def find_first_divergence(
        self, partition: Partition, position: int, agreed_end: int | None, doubted_from: int | None
    ) -> Offset | None:
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


@pytest.mark.parametrize("hidden", [False, True])
def test_a_hold_ends_at_no_gap_that_is_too_wide_for_markers(hidden: bool) -> None:
    """Half filled it would pass for a foreign write. Hidden records are counted by their sequence."""
    assigned = PartitionAssignment(
        partition=P, source_topic_id="", destination_topic_id="", all_answered=True, holds_deletions=True
    )
    for width, is_refused in ((MAX_GAP_OFFSETS, False), (MAX_GAP_OFFSETS + 1, not hidden)):
        start = SEEN.log_end + width
        replicator = PartitionReplicator(assigned, uses_hidden_records=hidden)
        replicator.set_leaders(1, 2, 1)
        decide(cast("LogInspector", Open()), replicator, replace(SEEN, source_start=start, source_end=start))
        assert (replicator.failure is not None) is is_refused
        if replicator.failure is not None:
            assert replicator.failure.kind is FailureKind.GAP_LIMIT
            assert "`hold_deletions` keeps: read there what you need" in replicator.failure.reason

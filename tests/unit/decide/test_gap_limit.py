"""How full of filled gaps a partition is: counted by the task, recorded in steps, and said before it is the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.task import build_report
from mirror_core.dataplane.epoch_planner import mark_aligned
from mirror_core.decide.gaps_and_resume import (
    FILLED_MASK,
    FILLED_STEP_OFFSETS,
    NEAR_LIMIT_OFFSETS,
    ResumePoint,
    find_gap_limit,
    round_filled,
)
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import PartitionAssignment
from tests.support.task_assignments import assignment

P = Partition("payments", 3)
STATUS = PartitionStatus(
    partition=P, state=PartitionState.MIRRORING, source_topic_id="s", destination_topic_id="d", source_epoch=0
)


@pytest.mark.parametrize(
    ("records", "gaps", "hides", "recorded"),
    [
        (10, FILLED_STEP_OFFSETS - 1, False, 0),
        (10, FILLED_STEP_OFFSETS, False, FILLED_STEP_OFFSETS),
        (5_000_000_000, NEAR_LIMIT_OFFSETS + 5, False, NEAR_LIMIT_OFFSETS),
        (10, FILLED_STEP_OFFSETS, True, 0),
    ],
)
def test_a_task_counts_what_is_filled_and_it_is_recorded_in_steps(
    records: int, gaps: int, hides: bool, recorded: int
) -> None:
    one = PartitionReplicator(
        PartitionAssignment(partition=P, source_topic_id="s", destination_topic_id="d"), uses_hidden_records=hides
    )
    one.set_leaders(1, 7, 1)
    one.mark_agreed()
    end, sequence = records + gaps, records & 0x7FFFFFFF
    one.resume_at(ResumePoint(offset=end, sequence=sequence, gap_end=end, seed_end=end, must_check_tail=False))
    told = build_report(assignment(), [one], "", 0.0, 0.0, 0.0, lambda broker: "")
    [found] = told.aligned
    assert mark_aligned(STATUS, found) == replace(STATUS, source_epoch=7, filled_gap_offsets=recorded)


def test_who_is_near_the_end_is_named_with_the_remedy_and_who_is_not_or_is_failed_is_not() -> None:
    below = replace(STATUS, filled_gap_offsets=NEAR_LIMIT_OFFSETS - FILLED_STEP_OFFSETS)
    near = replace(STATUS, filled_gap_offsets=NEAR_LIMIT_OFFSETS)
    assert find_gap_limit("m", [STATUS, below]) is None
    assert find_gap_limit("m", [replace(near, state=PartitionState.FAILED)]) is None
    fuller = replace(near, partition=Partition("audit", 0), filled_gap_offsets=NEAR_LIMIT_OFFSETS + FILLED_STEP_OFFSETS)
    assert find_gap_limit("m", [near, fuller]) == Finding(
        "gap_limit_near", "m", partitions=["audit-0", "payments-3"], filled_offsets=218_103_808, limit_offsets=1 << 28
    )


def test_the_last_step_that_can_be_recorded_is_near() -> None:
    assert NEAR_LIMIT_OFFSETS < round_filled(FILLED_MASK) < FILLED_MASK

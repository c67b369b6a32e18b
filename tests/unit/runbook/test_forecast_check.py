"""What a finished failover counts, without a broker."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from mirror_core.decide.forecast_accuracy import LossCount
from mirror_core.model.forecast import ForecastOutcome
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Plan, RunKind, RunMode, RunState
from mirror_core.model.sync_state import GroupCoverage, UncommittedGroupOffset, UnsyncedGroups
from mirror_core.runbook.forecast_check import count_outcome, count_outcome_later
from mirror_core.runbook.step_records import GroupResumeOffsets
from mirror_core.state.journal import Journal
from mirror_core.state.state_records import PartitionRecord, State
from mirror_core.state.writer import StateWriter
from tests.support.cluster_names import LINK
from tests.support.memory_state import MemoryLog, run_of

P = Partition("a", 0)


def test_groups_that_were_not_brought_over_are_counted_as_unknown_and_not_as_absent() -> None:
    state, name = State(), LINK.mirror.name
    state.partitions[name] = {
        P: PartitionStatus(
            partition=P, state=PartitionState.STOPPED, source_topic_id="s", destination_topic_id="d", lmo=Offset(9)
        )
    }
    journal = cast(
        "Journal",
        SimpleNamespace(
            log=SimpleNamespace(state=state), load_checkpoint=lambda *_: GroupResumeOffsets.from_groups({})
        ),
    )
    outcome = count_outcome(LINK, journal, LossCount(0, ""), ask_source=False)
    assert (outcome.reread_offsets, outcome.reread_basis) == ({}, "there were no groups")
    joined = UncommittedGroupOffset(group="g", partition="", reason="has members", coverage=GroupCoverage.SKIPPED)
    state.uncommitted_groups[name] = UnsyncedGroups(mirror=name, uncommitted=(joined, replace(joined, group="h")))
    outcome = count_outcome(LINK, journal, LossCount(0, ""), ask_source=False)
    assert outcome.reread_offsets == {"g": None, "h": None}
    assert outcome.reread_basis == "no group was brought over"


@pytest.mark.parametrize("mode", list(RunMode))
@pytest.mark.parametrize(
    ("lost", "tail", "since", "corrected"),
    [
        (0, None, None, (0, None, 0)),
        (0, 14, None, (5, None, 0)),
        (0, 14, 9, (0, None, 5)),
        (5, 14, 9, (5, None, 0)),
        (7, 14, None, (7, None, 0)),
        (None, None, None, (0, None, 0)),
        (None, 14, 12, (3, None, 2)),
    ],
)
def test_a_failback_corrects_a_loss_by_what_more_it_finds(
    mode: RunMode, lost: int | None, tail: int | None, since: int | None, corrected: tuple[int | None, int | None, int]
) -> None:
    log, name = MemoryLog(), LINK.mirror.name
    plan = Plan(kind=RunKind.FAILOVER, mirror=name, mode=mode, steps=(), bound_facts=())
    outcome = ForecastOutcome(
        lost_offsets=lost, lost_basis="counted", reread_offsets={"g": 4, "h": None}, reread_basis="asked"
    )
    log.put(
        replace(run_of("r", plan), state=RunState.DONE, ended_ms=2, forecast_outcome=outcome),
        LINK.mirror,
        PartitionRecord(
            name,
            PartitionStatus(
                partition=P, state=PartitionState.STOPPED, source_topic_id="s", destination_topic_id="d", lmo=Offset(9)
            ),
        ),
        PendingFence(
            mirror=name,
            cluster=LINK.source.name,
            action=FenceAction.APPLY,
            run="r",
            since_ms=1,
            uncopied=(),
            since_offsets=PartitionOffsets.from_mapping({} if since is None else {P: Offset(since)}),
        ),
    )
    tails = {} if tail is None else {P: (Offset(9), Offset(tail))}
    for _ in range(2):
        count_outcome_later(LINK, cast("StateWriter", log), tails, [P], {})
        counted = log.state.runs["r"].forecast_outcome
        assert counted is not None
        assert (counted.lost_offsets, counted.least_lost_offsets, counted.taken_since_offsets) == corrected
        assert counted.reread_offsets == {"g": 4, "h": None}, "what was counted of groups stays"

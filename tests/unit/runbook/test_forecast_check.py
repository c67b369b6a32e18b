"""What a finished failover counts, without a broker."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import GroupCoverage, UncommittedGroupOffset, UnsyncedGroups
from mirror_core.runbook.forecast_check import count_outcome
from mirror_core.runbook.step_records import GroupResumeOffsets
from mirror_core.state.journal import Journal
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK

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
    outcome = count_outcome(LINK, journal, (0, ""), ask_source=False)
    assert (outcome.reread_offsets, outcome.reread_basis) == ({}, "there were no groups")
    joined = UncommittedGroupOffset(group="g", partition="", reason="has members", coverage=GroupCoverage.SKIPPED)
    state.uncommitted_groups[name] = UnsyncedGroups(mirror=name, uncommitted=(joined, replace(joined, group="h")))
    outcome = count_outcome(LINK, journal, (0, ""), ask_source=False)
    assert outcome.reread_offsets == {"g": None, "h": None}
    assert outcome.reread_basis == "no group was brought over"

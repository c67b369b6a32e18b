"""The table of partition states: what can be reached, and what can never happen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.mirror import PartitionState as S
from mirror_core.state.partition_transitions import (
    PARTITION_TRANSITIONS,
    IllegalPartitionTransition,
    PartitionEvent,
    apply_events,
    format_markdown,
)


def test_every_state_is_reachable_from_unknown() -> None:
    reached = {S.UNKNOWN}
    while new := {target for (state, _), target in PARTITION_TRANSITIONS.items() if state in reached} - reached:
        reached |= new
    assert reached == set(S)


def test_every_event_is_of_use() -> None:
    assert {event for _, event in PARTITION_TRANSITIONS} == set(PartitionEvent)


@given(st.lists(st.sampled_from(list(PartitionEvent)), max_size=40))
def test_no_sequence_stops_without_stopping_nor_mirrors_without_alignment(events: list[PartitionEvent]) -> None:
    seen = [S.UNKNOWN]
    for event in events:
        if (seen[-1], event) in PARTITION_TRANSITIONS:
            seen.append(apply_events(seen[-1], event))
    for before, now in pairwise(seen):
        if now is S.STOPPED:
            assert before is S.STOPPING
        if now is S.MIRRORING:
            assert before in {S.LOG_ALIGNMENT, S.PAUSING, S.PAUSED}


def test_a_failed_partition_does_not_forbid_to_stop() -> None:
    assert apply_events(S.FAILED, PartitionEvent.STOP, PartitionEvent.LMO_RECORDED) is S.STOPPED


def test_every_state_but_the_first_and_the_last_can_be_stopped() -> None:
    stoppable = {state for state, event in PARTITION_TRANSITIONS if event is PartitionEvent.STOP}
    assert stoppable == set(S) - {S.UNKNOWN, S.STOPPING, S.STOPPED}


def test_an_illegal_event_names_what_is_possible() -> None:
    with pytest.raises(IllegalPartitionTransition, match=r"`pause` .* STOPPED; possible are: abort, start"):
        apply_events(S.STOPPED, PartitionEvent.PAUSE)


def test_documentation_has_a_line_for_each_transition() -> None:
    assert len(list(format_markdown())) == len(PARTITION_TRANSITIONS) + 2

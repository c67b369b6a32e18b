"""A partition's replicator: its states are a table, and its parts write only themselves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mirror_core import copy
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.copy.partition_states import (
    COPY_TRANSITIONS,
    ENDED_STATES,
    SENDING_STATES,
    CopyEvent,
    CopyState,
    IllegalCopyTransition,
    next_state,
)
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment

ROOM = Path(copy.__file__).parent


def replicator(until: int | None = None) -> PartitionReplicator:
    end = None if until is None else Offset(until)
    assigned = PartitionAssignment(
        partition=Partition("orders", 0), source_topic_id="", destination_topic_id="", stop_offset=end
    )
    made = PartitionReplicator(assigned)
    made.resume_at(ResumePoint(offset=10, sequence=10, gap_end=10, seed_end=10, must_check_tail=False))
    return made


def test_what_is_not_in_the_table_does_not_happen() -> None:
    for state in CopyState:
        for event in CopyEvent:
            if (state, event) in COPY_TRANSITIONS:
                assert next_state(state, event) is COPY_TRANSITIONS[state, event]
            else:
                with pytest.raises(IllegalCopyTransition, match=f"`{event}` in state {state}"):
                    next_state(state, event)


def test_only_a_shift_is_told_of_a_partition_that_has_ended() -> None:
    left = {(state, event) for state, event in COPY_TRANSITIONS if state in ENDED_STATES}
    assert left == {(CopyState.FAILED, CopyEvent.SHIFTED)}
    assert SENDING_STATES.isdisjoint(ENDED_STATES)


def test_a_bad_batch_fails_the_partition_when_all_before_it_is_acknowledged() -> None:
    one = replicator()
    one.skip_to(12)
    one.fail_after("corrupt", 12)
    one.finish_if_acknowledged()
    assert (one.state, one.is_finished, one.due_gap) == (CopyState.ENDING, True, one.queue.first_gap)
    case = one.start_gap_round()
    case.add_filled(2, 16)
    one.finish_gap_round(case)
    one.finish_if_acknowledged()
    assert one.state is CopyState.FAILED
    assert one.failure is not None
    assert one.failure.offset == 12


def test_a_place_that_was_lost_takes_the_word_of_a_bad_batch_back() -> None:
    one = replicator()
    one.fail_after("corrupt", 10)
    one.mark_lost("its leader moved")
    assert (one.state, one.failure) == (CopyState.LOST, None)


def test_it_is_done_where_it_was_asked_to_end_and_stays_so() -> None:
    one = replicator(until=10)
    assert one.state is CopyState.DONE
    one.handle_disconnect("a broker went away")
    assert one.state is CopyState.DONE


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: str(path.stem))
def test_nobody_writes_the_fields_of_another(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
        for part in (part for target in targets for part in ast.walk(target)):
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                itself = isinstance(part.value, ast.Name) and part.value.id == "self"
                assert itself, f"{path.name}:{part.lineno}: {ast.unparse(part)} is written from outside"

"""Whether a run may have granted rights.

Step `promote` writes its intent first, so it may have failed before any grant. `PromotionCheck` records that, and
changes before the first grant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from mirror_core.decide import steps
from mirror_core.model.names import NO_OFFSETS, MirrorName, PartitionOffsets
from mirror_core.model.run import Run, RunState
from mirror_core.state.state_records import State


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionCheck:
    VERSION: ClassVar[int] = 1
    source_state: str
    source_confirmed: bool = False
    """All of it answered: fenced, and with the copied log ends."""
    rights_given: bool = False
    """Applications may have a right on the destination, or a topic its final configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReturned:
    """The source answered while an unplanned promotion was resumed: a person must confirm the loss of its records."""

    VERSION: ClassVar[int] = 1
    log_ends: PartitionOffsets = NO_OFFSETS
    """Behind the fence, as reported. Empty: unknown, or the fence failed."""
    loss_confirmed: bool = False
    """By a person, for records not copied up to these ends."""
    fence_failure_reported: bool = False
    confirmed_ms: int = 0


class _PromotionCheckBase(msgspec.Struct):
    rights_given: bool


class _SourceReturnedBase(msgspec.Struct):
    loss_confirmed: bool


def awaits_confirmation(state: State, run: Run) -> bool:
    """The run met its source again before promotion. Unreadable counts as unconfirmed."""
    no_return_step = steps.find_no_return_step(run.plan.kind, run.plan.mode)
    record = state.checkpoints.get((run.id, no_return_step, SourceReturned.__name__))
    if record is None or run.state is not RunState.RUNNING or is_past_no_return(state, run):
        return False
    try:
        return not msgspec.json.decode(record.value, type=_SourceReturnedBase).loss_confirmed
    except msgspec.MsgspecError:
        return True


def is_past_no_return(state: State, run: Run) -> bool:
    """No abort any more. Unreadable counts as granted."""
    if not steps.is_past_no_return(run, state.steps) or run.state in (RunState.ABORTED, RunState.SUPERSEDED):
        return False
    no_return_step = steps.find_no_return_step(run.plan.kind, run.plan.mode)
    record = state.checkpoints.get((run.id, no_return_step, PromotionCheck.__name__))
    if record is None:
        return True
    try:
        return msgspec.json.decode(record.value, type=_PromotionCheckBase).rights_given
    except msgspec.MsgspecError:
        return True


def list_run_verbs(state: State, run: Run) -> tuple[steps.RunVerb, ...]:
    return steps.list_run_verbs(run, is_past_no_return=is_past_no_return(state, run))


def find_holding_run(state: State, mirror: MirrorName) -> steps.HoldingRun | None:
    run = state.active_run(mirror)
    return None if run is None else make_holding_run(state, run)


def make_holding_run(state: State, run: Run) -> steps.HoldingRun:
    return steps.HoldingRun.from_run(run, is_past_no_return=is_past_no_return(state, run))

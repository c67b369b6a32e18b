"""Whether a run is past its point of no return: only once rights may have been granted.

Step `promote` writes its intent first, so it may have begun and failed before any grant. `PromotionCheck` records that,
and changes before the first grant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from mirror_core.decide import steps
from mirror_core.model.offsets import NO_OFFSETS, Offsets
from mirror_core.model.run import Run, RunState
from mirror_core.state.records import State


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLook:
    """Before promotion."""

    VERSION: ClassVar[int] = 1
    words: str
    given: bool = False
    """Applications may have a right on the destination, or a topic its final configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The source answered while an unplanned promotion was resumed.

    Stored before it is fenced; then a person must confirm the loss of its records.
    """

    VERSION: ClassVar[int] = 1
    ends: Offsets = NO_OFFSETS
    """Behind the fence, as reported. Empty: unknown, or the fence failed."""
    left_behind: bool = False
    """By a person, for records not copied up to these ends."""
    told: bool = False
    said_ms: int = 0


class _Given(msgspec.Struct):
    given: bool


class _Word(msgspec.Struct):
    left_behind: bool


def waits_for_word(state: State, run: Run) -> bool:
    """The run met its source again before promotion. Unreadable counts as unconfirmed."""
    turning = steps.point_of_no_return(run.plan.kind, run.plan.mode)
    kept = state.checkpoints.get((run.id, turning, Returned.__name__))
    if kept is None or run.state is not RunState.RUNNING or turned(state, run):
        return False
    try:
        return not msgspec.json.decode(kept.value, type=_Word).left_behind
    except msgspec.MsgspecError:
        return True


def turned(state: State, run: Run) -> bool:
    """No abort any more. Unreadable counts as granted."""
    if not steps.turned(run, state.steps) or run.state in (RunState.ABORTED, RunState.SUPERSEDED):
        return False
    turning = steps.point_of_no_return(run.plan.kind, run.plan.mode)
    kept = state.checkpoints.get((run.id, turning, LastLook.__name__))
    if kept is None:
        return True
    try:
        return msgspec.json.decode(kept.value, type=_Given).given
    except msgspec.MsgspecError:
        return True

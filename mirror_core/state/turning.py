"""Whether a run is past its point of no return: not before something may have been given away.

A step's intent is written before it looks at anything, so a failover's step `promote` may have begun, and have failed,
before it gave anybody a right. Its last look is kept with that word, which changes before the first right is given.
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
    """What the source was seen to be before promotion. Kept for the step that promotes."""

    VERSION: ClassVar[int] = 1
    words: str
    given: bool = False
    """Whether applications may have been given a right on the destination, or a topic its final settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A source that answered again when the promotion of an unplanned run was resumed. Kept for the step that promotes,
    before that source is fenced: from then on its records wait for a person's word."""

    VERSION: ClassVar[int] = 1
    ends: Offsets = NO_OFFSETS
    """Its log ends behind the fence, as people were told of them. Empty: not yet, or that it could not be fenced."""
    left_behind: bool = False
    """Somebody has said that what is not copied up to these ends stays there only."""
    told: bool = False
    """People were told that it could not be fenced."""
    said_ms: int = 0
    """When somebody has said so."""


class _Given(msgspec.Struct):
    """As much of a last look as every Mirrorbook writes, whatever its version."""

    given: bool


class _Word(msgspec.Struct):
    """As much of a source that answered again."""

    left_behind: bool


def waits_for_word(state: State, run: Run) -> bool:
    """Whether an unplanned run has met its source again before it promoted, and nobody has said yet that what was not
    copied may stay there. What cannot be read counts as not said."""
    turning = steps.point_of_no_return(run.plan.kind, run.plan.mode)
    kept = state.checkpoints.get((run.id, turning, Returned.__name__))
    if kept is None or run.state is not RunState.RUNNING or turned(state, run):
        return False
    try:
        return not msgspec.json.decode(kept.value, type=_Word).left_behind
    except msgspec.MsgspecError:
        return True


def turned(state: State, run: Run) -> bool:
    """Whether no abort is possible any more. What cannot be read counts as given."""
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

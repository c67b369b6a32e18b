"""Where a run is, and where applications may write meanwhile, by its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.decide.steps import STEPS, Writes
from mirror_core.model.errors import Indeterminate
from mirror_core.model.run import Run, StepRecord, StepState


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run under way is."""

    step: str
    """Begun last; empty: none was."""
    writes: Writes
    """Where applications may write as long as nothing more happens."""
    since_ms: int
    """Of the newest word in its journal."""


def standing_of(run: Run, steps: Iterable[StepRecord]) -> Standing:
    """Indeterminate if another version wrote a step that this one does not know."""
    rows = STEPS[run.plan.kind, run.plan.mode]
    newest = max(steps, key=lambda one: one.started_ms, default=None)
    if newest is None:
        return Standing("", rows[0].writes, run.started_ms)
    known = [row.name for row in rows]
    if newest.step not in known:
        raise Indeterminate(
            f"run {run.id} has begun step {newest.step!r}, which this version of Mirrorbook does not know: use the "
            "version that began the run"
        )
    at = known.index(newest.step)
    ends = newest.state is StepState.DONE and rows[at].writes is Writes.NOWHERE and at + 1 < len(rows)
    return Standing(newest.step, rows[at + 1 if ends else at].writes, newest.ended_ms or newest.started_ms)

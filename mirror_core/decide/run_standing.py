"""Where a run is, and where applications may write meanwhile, by its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.decide.steps import RUN_STEPS, WriteLocation
from mirror_core.model.errors import Indeterminate
from mirror_core.model.run import Run, StepRecord, StepState


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run under way is."""

    step: str
    """Begun last; empty: none was."""
    writes: WriteLocation
    """Where applications may write as long as nothing more happens."""
    since_ms: int
    """Of the newest word in its journal."""


def find_run_progress(run: Run, steps: Iterable[StepRecord]) -> RunProgress:
    """Indeterminate if another version wrote a step that this one does not know."""
    rows = RUN_STEPS[run.plan.kind, run.plan.mode]
    newest = max(steps, key=lambda record: record.started_ms, default=None)
    if newest is None:
        return RunProgress("", rows[0].writes, run.started_ms)
    step_names = [row.name for row in rows]
    if newest.step not in step_names:
        raise Indeterminate(
            f"run {run.id} has begun step {newest.step!r}, which this version of Mirrorbook does not know: use the "
            "version that began the run"
        )
    position = step_names.index(newest.step)
    is_past_step = (
        newest.state is StepState.DONE and rows[position].writes is WriteLocation.NOWHERE and position + 1 < len(rows)
    )
    return RunProgress(
        newest.step, rows[position + 1 if is_past_step else position].writes, newest.ended_ms or newest.started_ms
    )

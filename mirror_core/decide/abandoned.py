"""Detects a run that stands still where no application can write, and that no process conducts."""

from __future__ import annotations

from typing import Final

from mirror_core.decide.conducting import ConductorState, ConductorStatus
from mirror_core.decide.drills import is_drill_mirror
from mirror_core.decide.run_standing import RunProgress
from mirror_core.decide.standing import format_time
from mirror_core.decide.steps import WriteLocation, find_no_return_step
from mirror_core.model.clock import CONDUCTOR_TIMEOUT_S
from mirror_core.model.mirror import Mirror
from mirror_core.model.run import Run

_NOT_CONDUCTED: Final = frozenset({ConductorState.RELEASED, ConductorState.SILENT})
_BETWEEN_TASKS_S: Final = 60.0
STALLED_AFTER_MS: Final = 60_000


def is_conducted(conductor: ConductorStatus) -> bool | None:
    """None: unknown. A run that was just released counts as conducted: Airflow takes time between two
    tasks.
    """
    if conductor.state is ConductorState.UNKNOWN:
        return None
    patience_s = CONDUCTOR_TIMEOUT_S + (_BETWEEN_TASKS_S if conductor.state is ConductorState.RELEASED else 0.0)
    return conductor.state not in _NOT_CONDUCTED or ((conductor.age_s or 0.0) < patience_s and not conductor.has_ended)


def format_stalled_alarms(
    mirror: Mirror, run: Run, progress: RunProgress, conductor: ConductorStatus
) -> tuple[str, ...]:
    """Alarms for people on call; empty: all is well. A drill's topics have no applications."""
    if progress.writes is not WriteLocation.NOWHERE or is_conducted(conductor) is not False or is_drill_mirror(mirror):
        return ()
    kind, name = run.plan.kind, run.plan.mirror
    clock = " by this machine's clock" if conductor.state is ConductorState.SILENT and not conductor.has_ended else ""
    last_seen = f"{conductor.by} did last, seen {format_time(conductor.last_seen_ms or 0)}"
    no_return_step = find_no_return_step(kind, run.plan.mode)
    return (
        f"{kind} {run.id} stands still {f'at {progress.step}' if progress.step else 'before its first step'} since "
        f"{format_time(progress.since_ms)}: applications can write nowhere, and nobody conducts it{clock} ({last_seen}). `mirrorbook "
        f"{kind} resume {name}` goes on with it; `mirrorbook {kind} abort {name}` gives it up, before {no_return_step}",
    )


def is_stalled(progress: RunProgress, now_ms: int) -> bool:
    return now_ms - progress.since_ms > STALLED_AFTER_MS

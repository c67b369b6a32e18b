"""Detects a run that stands still where no application can write, and that no process conducts."""

from __future__ import annotations

from typing import Final

from mirror_core.decide.conducting import Conducted, Sign
from mirror_core.decide.drills import is_drills
from mirror_core.decide.run_standing import Standing
from mirror_core.decide.standing import when
from mirror_core.decide.steps import Writes, point_of_no_return
from mirror_core.model.clock import CONDUCTED_S
from mirror_core.model.mirror import Mirror
from mirror_core.model.run import Run

_NOBODY: Final = frozenset({Sign.RELEASED, Sign.GONE})
_BETWEEN_TASKS_S: Final = 60.0
HELD_UP_MS: Final = 60_000


def conducts(found: Conducted) -> bool | None:
    """None: unknown. A run that was just released counts as conducted: Airflow takes time between two
    tasks.
    """
    if found.sign is Sign.UNKNOWN:
        return None
    patience_s = CONDUCTED_S + (_BETWEEN_TASKS_S if found.sign is Sign.RELEASED else 0.0)
    return found.sign not in _NOBODY or ((found.age_s or 0.0) < patience_s and not found.ended)


def abandoned(mirror: Mirror, run: Run, at: Standing, found: Conducted) -> tuple[str, ...]:
    """Alarms for people on call; empty: all is well. A drill's topics have no applications."""
    if at.writes is not Writes.NOWHERE or conducts(found) is not False or is_drills(mirror):
        return ()
    kind, name = run.plan.kind, run.plan.mirror
    clock = " by this machine's clock" if found.sign is Sign.GONE and not found.ended else ""
    seen = f"{found.by} did last, seen {when(found.seen_ms or 0)}"
    turning = point_of_no_return(kind, run.plan.mode)
    return (
        f"{kind} {run.id} stands still {f'at {at.step}' if at.step else 'before its first step'} since "
        f"{when(at.since_ms)}: applications can write nowhere, and nobody conducts it{clock} ({seen}). `mirrorbook "
        f"{kind} resume {name}` goes on with it; `mirrorbook {kind} abort {name}` gives it up, before {turning}",
    )


def held_up(at: Standing, now_ms: int) -> bool:
    return now_ms - at.since_ms > HELD_UP_MS

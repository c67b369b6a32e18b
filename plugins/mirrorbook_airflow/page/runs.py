"""A run as its journal tells of it, also while it happens. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from mirror_core.decide.run_result import format_outage_briefly, measure_outage
from mirror_core.decide.steps import RUN_STEPS, list_standstill_steps
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import Run, RunKind, StepRecord
from mirrorbook_airflow.page.mirror_state import Told

SHOWN: Final = 20
"""Runs of a mirror, the newest."""
_CONDUCTOR: Final = re.compile(r"airflow (?P<dag>\w[\w.-]*)/(?P<run>\S+?)(?: by .*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of the plan."""

    name: str
    state: str
    seconds: str
    writes: str
    """Where applications may write meanwhile."""
    attempt: int
    error: str
    share: float
    """Of the longest step, in percent, for its bar."""


@dataclass(frozen=True, slots=True)
class RunView:
    """One run."""

    id: str
    kind: str
    mode: str
    state: str
    begun_ms: int
    ended: bool
    approved_by: str
    conducted: str
    """Whether anybody does now; empty: the run has ended."""
    standstill: str
    dag: str
    """Of Airflow, when Airflow began it; empty: the command line did."""
    dag_link: str
    """Path within Airflow's UI."""
    note: str
    part_of: str
    """The failover of a set of mirrors that it belongs to; empty: of none."""
    steps: tuple[StepView, ...]


def runs_of(told: Told, mirror: MirrorName, now_ms: int) -> Iterator[RunView]:
    """The run that holds the mirror first, then the newest."""
    mine = [run for run in told.state.runs.values() if run.plan.mirror == mirror]
    mine.sort(key=lambda run: (run.ended_ms is None, run.started_ms), reverse=True)
    for run in mine[:SHOWN]:
        now = "" if run.ended_ms is not None else str(told.conducted(run, now_ms))
        yield _view(run, told.state.steps_of(run), now, now_ms)


def _view(run: Run, steps: tuple[StepRecord, ...], conducted: str, now_ms: int) -> RunView:
    dag, link = dag_run_of(run.started_by)
    return RunView(
        id=run.id,
        kind=run.plan.kind,
        mode=run.plan.mode,
        state=run.state,
        begun_ms=run.started_ms,
        ended=run.ended_ms is not None,
        approved_by=run.approved_by or "nobody",
        conducted=conducted,
        standstill=standstill(run, steps, now_ms),
        dag=dag,
        dag_link=link,
        note=run.note,
        part_of=run.set_run,
        steps=tuple(_steps(run, steps, now_ms)),
    )


def standstill(run: Run, steps: tuple[StepRecord, ...], now_ms: int) -> str:
    """Seconds in which applications write nowhere: the core's clock at the end, and the time until now before that. A
    failback itself stops nobody: its way home is a failover."""
    if run.plan.kind is RunKind.FAILBACK:
        return f"that of the failover of {format_reverse_name(run.plan.mirror)}"
    if (outage := measure_outage(run, steps)) is not None:
        return format_outage_briefly(outage, run.plan.mode)
    timed = list_standstill_steps(run.plan.kind, run.plan.mode)
    first = next((s for s in steps if timed and s.step == timed[0]), None)
    if first is None:
        return "not begun" if run.ended_ms is None else "none"
    if run.ended_ms is not None:
        return f"given up after at most {(run.ended_ms - first.first_attempt_ms) / 1000:.1f} s"
    return f"{max(0, now_ms - first.first_attempt_ms) / 1000:.1f} s so far"


def _steps(run: Run, steps: tuple[StepRecord, ...], now_ms: int) -> Iterator[StepView]:
    known = {step.step: step for step in steps}
    taken = {step.step: _seconds(step, run, now_ms) for step in steps}
    longest = max(taken.values(), default=0.0) or 1.0
    writes = {step.name: step.writes for step in RUN_STEPS[run.plan.kind, run.plan.mode]}
    for planned in run.plan.steps:
        step, seconds = known.get(planned.name), taken.get(planned.name, 0.0)
        yield StepView(
            name=planned.name,
            state=step.state if step else "not begun",
            seconds=f"{seconds:.1f}" if step else "",
            writes=writes.get(planned.name, ""),
            attempt=step.attempt if step else 0,
            error=step.error if step else "",
            share=round(100 * seconds / longest, 1),
        )


def _seconds(step: StepRecord, run: Run, now_ms: int) -> float:
    """Of a step that is under way: until now, or until its run was given up."""
    return max(0, (step.ended_ms or run.ended_ms or now_ms) - step.started_ms) / 1000


def dag_run_of(started_by: str) -> tuple[str, str]:
    """The DAG's id and the path of its run's page; empty when it was not begun by Airflow."""
    found = _CONDUCTOR.fullmatch(started_by)
    if found is None:
        return "", ""
    return found["dag"], f"/dags/{quote(found['dag'], safe='')}/runs/{quote(found['run'], safe='')}"

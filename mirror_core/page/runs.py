"""Runs and their steps; forecasts beside measured figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from mirror_core.decide import forecast_accuracy
from mirror_core.decide.run_result import format_outage_briefly, measure_outage
from mirror_core.decide.steps import RUN_STEPS, list_standstill_steps
from mirror_core.model.names import MirrorName, format_reverse_name
from mirror_core.model.run import Run, RunKind, StepRecord, list_newest_first
from mirror_core.model.run_checkpoints import RunNote
from mirror_core.page.snapshots import ClusterSnapshot
from mirror_core.runbook.run_outcome import count_lost_behind_fence
from mirror_core.state.journal import list_notes
from mirror_core.state.state_records import State

MAX_SHOWN_RUNS: Final = 20
"""The newest of a mirror."""
_CONDUCTOR: Final = re.compile(r"airflow (?P<dag>\w[\w.-]*)/(?P<run>\S+?)(?: by .*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StepView:
    name: str
    state: str
    seconds: str
    writes: str
    attempt: int
    error: str
    share: float
    """Percentage of the longest step."""


@dataclass(frozen=True, slots=True)
class RunView:
    id: str
    kind: str
    mode: str
    state: str
    begun_ms: int
    ended: bool
    approved_by: str
    conductor: str
    """Empty: the run has ended."""
    standstill: str
    dag: str
    """Empty: begun by the command line."""
    dag_link: str
    """Path within Airflow's UI."""
    note: str
    part_of: str
    """Empty: none."""
    steps: tuple[StepView, ...]
    notes: tuple[RunNote, ...]
    """Added after its end."""


def list_run_views(cluster: ClusterSnapshot, mirror: MirrorName, now_ms: int) -> Iterator[RunView]:
    """Newest first, so that a run that holds the mirror is the first."""
    runs = list_newest_first(run for run in cluster.state.runs.values() if run.plan.mirror == mirror)
    for run in runs[:MAX_SHOWN_RUNS]:
        conductor = "" if run.ended_ms is not None else str(cluster.find_conductor_status(run, now_ms))
        notes = list_notes(cluster.state, run.id)
        yield _make_view(run, cluster.state.steps_of(run), conductor, notes, cluster.to_broker_time_ms(now_ms))


def _make_view(
    run: Run, steps: tuple[StepRecord, ...], conductor: str, notes: tuple[RunNote, ...], now_ms: int
) -> RunView:
    dag, link = parse_dag_run(run.started_by)
    return RunView(
        id=run.id,
        kind=run.plan.kind,
        mode=run.plan.mode,
        state=run.state,
        begun_ms=run.started_ms,
        ended=run.ended_ms is not None,
        approved_by=run.approved_by or "nobody",
        conductor=conductor,
        standstill=format_standstill(run, steps, now_ms),
        dag=dag,
        dag_link=link,
        note=run.note,
        part_of=run.set_run,
        steps=tuple(_list_step_views(run, steps, now_ms)),
        notes=notes,
    )


def format_standstill(run: Run, steps: tuple[StepRecord, ...], now_ms: int) -> str:
    """Final where the run has ended, until now otherwise."""
    if run.plan.kind is RunKind.FAILBACK:
        return f"see failover {format_reverse_name(run.plan.mirror)}"
    if (outage := measure_outage(run, steps)) is not None:
        return format_outage_briefly(outage, run.plan.mode)
    standstill_steps = list_standstill_steps(run.plan.kind, run.plan.mode)
    first = next((s for s in steps if standstill_steps and s.step == standstill_steps[0]), None)
    if first is None:
        return "not begun" if run.ended_ms is None else "none"
    if run.ended_ms is not None:
        return f"given up after at most {(run.ended_ms - first.first_attempt_ms) / 1000:.1f} s"
    return f"{max(0, now_ms - first.first_attempt_ms) / 1000:.1f} s so far"


def _list_step_views(run: Run, steps: tuple[StepRecord, ...], now_ms: int) -> Iterator[StepView]:
    records = {step.step: step for step in steps}
    seconds_by_step = {step.step: _measure_seconds(step, run, now_ms) for step in steps}
    longest = max(seconds_by_step.values(), default=0.0) or 1.0
    writes = {step.name: step.writes for step in RUN_STEPS[run.plan.kind, run.plan.mode]}
    for planned in run.plan.steps:
        step, seconds = records.get(planned.name), seconds_by_step.get(planned.name, 0.0)
        yield StepView(
            name=planned.name,
            state=step.state if step else "not begun",
            seconds=f"{seconds:.1f}" if step else "",
            writes=writes.get(planned.name, ""),
            attempt=step.attempt if step else 0,
            error=step.error if step else "",
            share=round(100 * seconds / longest, 1),
        )


def _measure_seconds(step: StepRecord, run: Run, now_ms: int) -> float:
    return max(0, (step.ended_ms or run.ended_ms or now_ms) - step.started_ms) / 1000


def parse_dag_run(started_by: str) -> tuple[str, str]:
    """DAG id and path of the run's page; empty: not begun by Airflow."""
    match = _CONDUCTOR.fullmatch(started_by)
    if match is None:
        return "", ""
    return match["dag"], f"/dags/{quote(match['dag'], safe='')}/runs/{quote(match['run'], safe='')}"


MAX_FORECAST_RUNS: Final = 10
MAX_FORECAST_GROUPS: Final = 20
"""Groups per run, the greatest error first."""


@dataclass(frozen=True, slots=True)
class ForecastRow:
    what: str
    forecast: str
    counted: str
    error: str
    basis: str
    """How what was counted is known, or why it is not."""


@dataclass(frozen=True, slots=True)
class ForecastView:
    id: str
    mode: str
    begun_ms: int
    rows: tuple[ForecastRow, ...]
    more: int
    """Groups that are left out."""


def list_forecast_views(state: State, mirror: MirrorName) -> Iterator[ForecastView]:
    """Failovers that were finished and drills, newest first; without those that forecast and counted nothing."""
    rows_by_run = (
        (run, forecast_accuracy.list_forecast_rows(count_lost_behind_fence(state, run), state.steps_of(run)))
        for run in forecast_accuracy.list_past_failovers(state.runs.values(), mirror)
    )
    for run, rows in [(run, rows) for run, rows in rows_by_run if rows][:MAX_FORECAST_RUNS]:
        groups = sorted(
            (row for row in rows if row.key is forecast_accuracy.ForecastKey.READ_AGAIN_OFFSETS), key=_rank_by_error
        )
        shown_rows = [
            *(row for row in rows if row.key is not forecast_accuracy.ForecastKey.READ_AGAIN_OFFSETS),
            *groups[:MAX_FORECAST_GROUPS],
        ]
        yield ForecastView(
            run.id, run.plan.mode, run.started_ms, tuple(map(_format_row, shown_rows)), len(rows) - len(shown_rows)
        )


def _rank_by_error(row: forecast_accuracy.ForecastComparison) -> tuple[bool, float, str]:
    return row.error is not None, -abs(row.error or 0), row.item


def _format_row(row: forecast_accuracy.ForecastComparison) -> ForecastRow:
    return ForecastRow(
        f"{row.label} {row.item}".strip(),
        forecast_accuracy.format_forecast(row),
        forecast_accuracy.format_counted(row),
        forecast_accuracy.format_error(row),
        row.basis,
    )

"""Forecasts of plans beside the measured figures of their runs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirror_core.decide import forecast_accuracy
from mirror_core.model.names import MirrorName
from mirror_core.state.state_records import State

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
    """One run."""

    id: str
    mode: str
    begun_ms: int
    rows: tuple[ForecastRow, ...]
    more: int
    """Groups that are left out."""


def list_forecast_views(state: State, mirror: MirrorName) -> Iterator[ForecastView]:
    """Failovers that were finished and drills, the newest first; without those that foretold and counted nothing."""
    rows_by_run = (
        (run, forecast_accuracy.list_forecast_rows(run, state.steps_of(run)))
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
    """Unknown errors first."""
    return row.error is not None, -abs(row.error or 0), row.item


def _format_row(row: forecast_accuracy.ForecastComparison) -> ForecastRow:
    return ForecastRow(
        f"{row.label} {row.item}".strip(),
        forecast_accuracy.format_forecast(row),
        forecast_accuracy.format_counted(row),
        forecast_accuracy.format_error(row),
        row.basis,
    )

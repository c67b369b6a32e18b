"""What plans of a mirror foretold beside what their runs counted. The rows and words are the core's. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirror_core.decide import forecast_accuracy
from mirror_core.model.names import MirrorName
from mirror_core.state.state_records import State

SHOWN: Final = 10
"""Runs, the newest."""
GROUPS: Final = 20
"""Of each run, those with the greatest error."""


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """One thing that was foretold, or counted, or both."""

    what: str
    foretold: str
    counted: str
    error: str
    by: str
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


def forecasts_of(state: State, mirror: MirrorName) -> Iterator[ForecastView]:
    """Failovers that were finished and drills, the newest first; without those that foretold and counted nothing."""
    told = (
        (run, forecast_accuracy.list_forecast_rows(run, state.steps_of(run)))
        for run in forecast_accuracy.list_past_failovers(state.runs.values(), mirror)
    )
    for run, rows in [(run, rows) for run, rows in told if rows][:SHOWN]:
        groups = sorted((row for row in rows if row.subject == forecast_accuracy.READ_AGAIN_ROW), key=_worst_first)
        kept = [*(row for row in rows if row.subject != forecast_accuracy.READ_AGAIN_ROW), *groups[:GROUPS]]
        yield ForecastView(run.id, run.plan.mode, run.started_ms, tuple(map(_in_words, kept)), len(rows) - len(kept))


def _worst_first(row: forecast_accuracy.ForecastComparison) -> tuple[bool, float, str]:
    """Those of which the error is unknown before all others."""
    return row.error is not None, -abs(row.error or 0), row.item


def _in_words(row: forecast_accuracy.ForecastComparison) -> ForecastRow:
    return ForecastRow(
        f"{row.subject} {row.item}".strip(),
        forecast_accuracy.format_forecast(row),
        forecast_accuracy.format_counted(row),
        forecast_accuracy.format_error(row),
        row.basis,
    )

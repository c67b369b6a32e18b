from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror_core.decide.drills import forecast_standstill
from mirror_core.decide.steps import measure_standstill_s
from mirror_core.evidence.runbook_page import PastRunLine, RunbookContent
from mirror_core.model.run import RunKind, RunMode
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import State

MAX_LISTED_RUNS: Final = 5


def collect_runbook(link: MirrorLink, state: State, now_ms: int) -> RunbookContent:
    mirror = link.mirror
    forecasts = {mode: forecast_standstill(state.runs.values(), state.steps_of, mirror.name, mode) for mode in RunMode}
    return RunbookContent(
        mirror=mirror,
        statuses=state.partitions.get(mirror.name, {}),
        servers={side.name: side.control["bootstrap.servers"] for side in (link.source, link.destination)},
        owner=link.config.owner(mirror.name),
        hooks=[hook.description for hook in link.config.hooks(mirror.name)],
        forecasts={
            mode: f"{run_forecast.seconds:.1f} ({run_forecast.basis})"
            if run_forecast
            else "unknown: no earlier run, and no drill"
            for mode, run_forecast in forecasts.items()
        },
        runs=list(_list_past_runs(state, mirror.name)),
        now_ms=now_ms,
    )


def _list_past_runs(state: State, name: str) -> Iterator[PastRunLine]:
    failovers = [r for r in state.runs.values() if r.plan.mirror == name and r.plan.kind is RunKind.FAILOVER]
    for run in sorted(failovers, key=lambda run: run.started_ms, reverse=True)[:MAX_LISTED_RUNS]:
        seconds = measure_standstill_s(run, state.steps_of(run))
        stood_still = "unknown" if seconds is None else f"{seconds:.1f}"
        yield PastRunLine(id=run.id, mode=run.plan.mode, state=run.state, stood_still=stood_still)

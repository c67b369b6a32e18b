"""What a mirror's runbook page says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror_core.decide.drills import forecast_standstill
from mirror_core.decide.fence_state import (
    FenceState,
    find_fence_state,
)
from mirror_core.decide.run_result import format_outage_briefly, measure_outage
from mirror_core.decide.run_status import find_newest_run
from mirror_core.decide.write_access import has_moved_applications, is_place_unrecorded
from mirror_core.evidence.runbook_page import PastRunLine, RunbookContent
from mirror_core.model.findings import Finding
from mirror_core.model.run import RunKind, RunMode, list_newest_first
from mirror_core.model.text import format_shell_command
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State

MAX_LISTED_RUNS: Final = 5


def collect_runbook(link: MirrorLink, state: State, now_ms: int) -> RunbookContent:
    mirror = link.mirror
    forecasts = {mode: forecast_standstill(state.runs.values(), state.steps_of, mirror.name, mode) for mode in RunMode}
    return RunbookContent(
        mirror=mirror,
        statuses=state.partitions.get(mirror.name, {}),
        servers={side.name: side.control["bootstrap.servers"] for side in (link.source, link.destination)},
        owner=link.config.owner(mirror.name),
        writes=_format_recorded_writes(link, state),
        hooks=[hook.description for hook in link.config.hooks(mirror.name)],
        forecasts={
            mode: (
                f"{run_forecast.seconds:.1f} ({run_forecast.basis})"
                if run_forecast
                else str(Finding("standstill_not_measured", mode=mode))
            )
            for mode, run_forecast in forecasts.items()
        },
        runs=list(_list_past_runs(state, mirror.name)),
        now_ms=now_ms,
    )


def _format_recorded_writes(link: MirrorLink, state: State) -> str:
    mirror, newest = link.mirror, find_newest_run(link.mirror.name, state.runs.values())
    if newest is not None and newest.ended_ms is None:
        command = format_shell_command("mirrorbook", newest.plan.kind, "status", mirror.name)
        return f"see run {newest.id}, which is open: `{command}`"
    pending_fence = state.pending_fences.get(mirror.name)
    if has_moved_applications(mirror, pending_fence, newest):
        return mirror.destination
    if is_place_unrecorded(mirror, pending_fence, newest):
        return "not known: it was stopped, and no failover of it is recorded"
    if find_fence_state(pending_fence) is FenceState.LIFTING:
        return f"perhaps nowhere: the fence on {mirror.source} may still be there"
    return mirror.source


def _list_past_runs(state: State, name: str) -> Iterator[PastRunLine]:
    failovers = [r for r in state.runs.values() if r.plan.mirror == name and r.plan.kind is RunKind.FAILOVER]
    for run in list_newest_first(failovers)[:MAX_LISTED_RUNS]:
        stood_still = format_outage_briefly(measure_outage(run, state.steps_of(run)), run.plan.mode)
        yield PastRunLine(id=run.id, mode=run.plan.mode, state=run.state, stood_still=stood_still)

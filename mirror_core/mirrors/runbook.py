from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror_core.decide.drills import forecast
from mirror_core.decide.steps import stood_still_s
from mirror_core.evidence.runbook_page import PastRun, Runbook
from mirror_core.model.run import Mode, RunKind
from mirror_core.state.link import Link
from mirror_core.state.records import State

SHOWN: Final = 5


def runbook_of(link: Link, state: State, now_ms: int) -> Runbook:
    mirror = link.mirror
    known = {mode: forecast(state.runs.values(), state.steps_of, mirror.name, mode) for mode in Mode}
    return Runbook(
        mirror=mirror,
        statuses=state.partitions.get(mirror.name, {}),
        servers={side.name: side.control["bootstrap.servers"] for side in (link.source, link.destination)},
        owner=link.config.owner(mirror.name),
        hooks=[hook.words for hook in link.config.hooks(mirror.name)],
        forecasts={
            mode: f"{one.seconds:.1f} ({one.basis})" if one else "unknown: no earlier run, and no drill"
            for mode, one in known.items()
        },
        runs=list(_before(state, mirror.name)),
        now_ms=now_ms,
    )


def _before(state: State, name: str) -> Iterator[PastRun]:
    mine = [r for r in state.runs.values() if r.plan.mirror == name and r.plan.kind is RunKind.FAILOVER]
    for run in sorted(mine, key=lambda run: run.started_ms, reverse=True)[:SHOWN]:
        seconds = stood_still_s(run, state.steps_of(run))
        stood_still = "unknown" if seconds is None else f"{seconds:.1f}"
        yield PastRun(id=run.id, mode=run.plan.mode, state=run.state, stood_still=stood_still)

"""The first screen of a mirror: can it fail over now, what would that cost, how long would it take, and how is that
known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide import drills
from mirror_core.decide.clock_skew import UNKNOWN_TIME_TEXT, format_ago, format_since
from mirror_core.decide.drills import FORECAST_FIGURES
from mirror_core.decide.failover_readiness import UnplannedForecast, format_read_again
from mirror_core.decide.loss_bound import format_behind
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.run import Run, RunMode
from mirrorbook_airflow.page.mirror_state import Judged, Seen, Told, is_current
from mirrorbook_airflow.page.number_format import UNKNOWN, Age, age_of
from mirrorbook_airflow.page.runs import RunView

JUDGED_FRESH_S: Final = 120.0
"""A judgement that is older is shown as unknown."""


@dataclass(frozen=True, slots=True)
class Card:
    """One answer of the first screen."""

    title: str
    value: str
    tone: str
    """good, warn, bad or unknown."""
    lines: tuple[str, ...]


def judged_age(judged: Judged | None, now_ms: int) -> Age:
    """How old it is."""
    return age_of(judged.at_ms if judged else None, now_ms, JUDGED_FRESH_S)


def current(judged: Judged | None, now_ms: int) -> Judged | None:
    """None when it is too old."""
    return None if judged_age(judged, now_ms).stale else judged


def readiness_card(
    judged: Judged | None, told: Told, seen: Seen | None, mirror: Mirror, states: str, now_ms: int
) -> Card:
    """A judgement that is old, or was made before something changed, makes it unknown, not ready. `states`: of the
    partitions, counted."""
    title, states = "Can it fail over now", states or "no partitions"
    known = current(judged, now_ms)
    if known is None or known.decision is None:
        old = f"looked at {judged_age(judged, now_ms)}" if judged else "not looked at yet"
        return Card(title, "UNKNOWN", "unknown", (known.trouble if known else old, states))
    run, decision = told.state.active_run(mirror.name), known.decision
    beside = (f"{point.text}: {point.remedy}" if point.remedy else point.text for point in known.points)
    notes = (*decision.plan.warnings, *(f"not known: {line}" for line in decision.plan.unknown), *beside)
    more = (_without_source(known.unplanned), states)
    if run is not None:
        return Card(title, f"{run.plan.kind.upper()} UNDER WAY", "warn", (*decision.reasons, *notes, *more))
    if since := changed_since(known, told, mirror):
        return Card(title, "UNKNOWN", "unknown", (since, states))
    if decision.reasons and known.only_without_source:
        if old := told.silent or _stale(told, seen, now_ms):
            return Card(title, "UNKNOWN", "unknown", (old, *decision.reasons, states))
        return Card(title, "ONLY WITHOUT THE SOURCE", "warn", (more[0], *decision.reasons, *notes, states))
    if decision.reasons:
        return Card(title, "NOT READY", "bad", (*decision.reasons, *notes, *more))
    if why := _stale(told, seen, now_ms) or trouble_of(told, seen):
        return Card(title, "UNKNOWN", "unknown", (why, states))
    if notes:
        return Card(title, f"READY, {len(notes)} warning(s)", "warn", (*notes, *more))
    return Card(title, "READY", "good", more)


def changed_since(known: Judged, told: Told, mirror: Mirror) -> str:
    """What has been done with the mirror since it was judged, in words; empty: nothing."""
    ended = (r.ended_ms for r in told.state.runs.values() if r.plan.mirror == mirror.name and r.ended_ms is not None)
    if max(ended, default=-1) >= known.at_ms:
        return "not looked at since its last run has ended"
    if known.desired not in (None, mirror.desired):
        return f"not looked at since it is {mirror.desired}"
    return ""


def _stale(told: Told, seen: Seen | None, now_ms: int) -> str:
    """What the page has not heard for too long, in words."""
    state, both = age_of(told.at_ms, now_ms), age_of(seen.at_ms if seen else now_ms, now_ms)
    if state.stale:
        return f"the state was last read {state}"
    return f"both clusters were last looked at {both}" if both.stale else ""


def _without_source(unplanned: UnplannedForecast | None) -> str:
    """How it stands with an unplanned failover; what it would lose is a card of its own."""
    if unplanned is None:
        return f"without the source: {UNKNOWN}"
    if unplanned.refused:
        return f"without the source: refused: {'; '.join(unplanned.refused)}"
    return f"without the source: possible; read again: {format_read_again(unplanned)}"


def loss_card(seen: Seen | None, mirror: Mirror) -> Card:
    """The bound in the core's words, how far behind the copy is in time, and the newest heartbeat."""
    title = "Loss if the source died now"
    if seen is None or seen.loss is None:
        return Card(title, UNKNOWN, "unknown", (f"behind: {UNKNOWN}",))
    loss = seen.loss
    late = f"behind: {'stopped' if mirror.desired is DesiredState.STOPPED else format_behind(loss)}"
    old = UNKNOWN_TIME_TEXT if loss.heartbeat_age_s is None and loss.heartbeats else format_ago(loss.heartbeat_age_s)
    beat = f"newest heartbeat on the destination: {old if loss.heartbeats else 'none'}"
    missing = seen.description.facts["offsets known to be missing"] if seen.description else None
    if missing is None:
        return Card(title, UNKNOWN, "unknown", (loss.text, late, beat))
    tone = "good" if is_current(loss) and not missing else "warn"
    return Card(title, f"at least {missing:,} offsets", tone, (loss.text, late, beat))


def time_card(known: Judged | None, runs: Sequence[RunView], drilled: Sequence[str]) -> Card:
    """What a planned failover would take, and what the last ones took. `drilled`: as `last_drills` gives it."""
    figures = known.decision.plan.figures if known and known.decision else {}
    predicted = figures.get(FORECAST_FIGURES[RunMode.PLANNED], UNKNOWN)
    last = next((f"last run: {r.kind} {r.id}, {r.state}, standstill {r.standstill}" for r in runs), "no run yet")
    tone = "unknown" if predicted.startswith(UNKNOWN) else "good"
    lines = [f"last drill: {line}" for line in drilled] or ["no drill yet"]
    return Card("Time without writes", predicted, tone, (last, *lines))


def last_drills(told: Told, mirror: Mirror, now_ms: int) -> list[str]:
    """The newest one of each mode, the newest first: what failed in one mode is not hidden by what came through."""
    newest = dict[RunMode, Run]()
    for run in drills.list_drill_runs(told.state.runs.values(), mirror.name):
        newest.setdefault(run.plan.mode, run)
    return [_last_drill(told, run, now_ms) for run in newest.values()]


def _last_drill(told: Told, run: Run, now_ms: int) -> str:
    seen = drills.summarize_drill(run, told.state.steps_of(run))
    took = "none measured" if seen.measured_s is None else f"{seen.measured_s:.1f} s"
    name = "standstill" if seen.mode is RunMode.PLANNED else "first step to promotion"
    return f"{seen.mode}, {seen.text}, {name} {took}, {format_since(now_ms, seen.at_ms)}"


def proof_card(seen: Seen | None, told: Told, mirror: Mirror, now_ms: int) -> Card:
    """How much of the copy was compared, and that it differs; how old the groups' offsets are."""
    proved = str(seen.description.facts["proved equal"]) if seen and seen.description else UNKNOWN
    differs = str(seen.description.facts["known to differ"]) if seen and seen.description else "none"
    tone = "unknown" if proved == UNKNOWN else "warn" if proved.startswith("none") else "good"
    if differs != "none":
        return Card("Proved equal", f"the copy differs in {differs}", "bad", (proved,))
    return Card("Proved equal", proved, tone, (f"groups synced {groups_synced(told, mirror, now_ms)}",))


def groups_synced(told: Told, mirror: Mirror, now_ms: int) -> Age:
    """Since when groups stand on the destination where they stood on the source."""
    groups = told.state.groups.get(mirror.name)
    return age_of(groups.synced_ms if groups else None, now_ms)


def trouble_of(told: Told, seen: Seen | None) -> str:
    """Why the last look did not see everything; empty: it did."""
    if told.silent or seen is None:
        return told.silent
    found = seen.description.facts["trouble"] if seen.description else seen.trouble
    return "" if found == "none" else str(found)

"""A mirror's first screen: can it fail over, at what cost, how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide import drills
from mirror_core.decide.approval_rules import is_losing
from mirror_core.decide.clock_skew import UNKNOWN_TIME_TEXT, format_ago, format_since
from mirror_core.decide.failover_readiness import UnplannedForecast, format_read_again
from mirror_core.decide.loss_bound import LossBound, find_oldest, format_behind
from mirror_core.mirrors.mirror_facts import FactKey
from mirror_core.model.figures import FIRST_STEP_TEXT, FigureKey, find_definition, format_share, format_value
from mirror_core.model.findings import format_remedy
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.run import Run, RunMode
from mirror_core.model.text import format_count, format_time
from mirror_core.page.runs import RunView
from mirror_core.page.snapshots import (
    UNKNOWN,
    Age,
    ClusterSnapshot,
    IdleReverseMirror,
    MirrorAssessment,
    MirrorView,
    compute_age,
    is_loss_current,
)

MAX_ASSESSMENT_AGE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class AnswerCard:
    title: str
    value: str
    tone: str
    """good, warn, bad or unknown."""
    lines: tuple[str, ...]


def compute_assessment_age(assessment: MirrorAssessment | None, now_ms: int) -> Age:
    return compute_age(assessment.at_ms if assessment else None, now_ms, MAX_ASSESSMENT_AGE_S)


def select_current(assessment: MirrorAssessment | None, now_ms: int) -> MirrorAssessment | None:
    return None if compute_assessment_age(assessment, now_ms).stale else assessment


def make_readiness_card(
    assessment: MirrorAssessment | None,
    cluster: ClusterSnapshot,
    snapshot: MirrorView | None,
    mirror: Mirror,
    states: str,
    now_ms: int,
) -> AnswerCard:
    title, states = "Can it fail over now", states or "no partitions"
    if snapshot is not None and snapshot.returned is not None and not compute_age(snapshot.at_ms, now_ms).stale:
        returned = snapshot.returned
        lines = (f"{returned}: {format_remedy(returned)}", states)
        return AnswerCard(title, f"{returned.subject.upper()} IS NOT FENCED", "bad", lines)
    current_assessment = select_current(assessment, now_ms)
    if current_assessment is None or current_assessment.decision is None:
        reason = f"looked at {compute_assessment_age(assessment, now_ms)}" if assessment else "not looked at yet"
        return AnswerCard(
            title,
            "UNKNOWN" if assessment else "LOOKING …",
            "unknown",
            (current_assessment.error if current_assessment else reason, states),
        )
    reasons = tuple(map(str, current_assessment.decision.reasons))
    run, decision = cluster.state.active_run(mirror.name), current_assessment.decision
    points = (f"{point}: {point.remedy}" if point.remedy else str(point) for point in current_assessment.points)
    notes = (*map(str, decision.plan.warnings), *(f"not known: {line}" for line in decision.plan.unknown), *points)
    rest = (_format_unplanned(current_assessment.unplanned), states)
    if run is not None:
        return AnswerCard(title, f"{run.plan.kind.upper()} UNDER WAY", "warn", (*reasons, *notes, *rest))
    if change := explain_outdated(current_assessment, cluster, mirror):
        return AnswerCard(title, "UNKNOWN", "unknown", (change, states))
    if reasons and current_assessment.is_only_unplanned:
        if reason := cluster.unreachable_reason or _explain_stale(cluster, snapshot, now_ms):
            return AnswerCard(title, "UNKNOWN", "unknown", (reason, *reasons, states))
        return AnswerCard(title, "ONLY WITHOUT THE SOURCE", "warn", (rest[0], *reasons, *notes, states))
    if reasons or any(map(is_losing, decision.plan.warnings)):
        return AnswerCard(title, "NOT READY", "bad", (*reasons, *notes, *rest))
    if problem := _explain_stale(cluster, snapshot, now_ms) or explain_incomplete_snapshot(cluster, snapshot):
        return AnswerCard(title, "UNKNOWN", "unknown", (problem, states))
    if notes:
        return AnswerCard(title, f"READY, {format_count(len(notes), 'warning')}", "warn", (*notes, *rest))
    return AnswerCard(title, "READY", "good", rest)


def make_idle_cards(idle: IdleReverseMirror) -> tuple[AnswerCard, AnswerCard]:
    """Instead of readiness and loss: nobody waits for a mirror that has nothing to copy."""
    since = "" if idle.since_ms is None else f" since {format_time(idle.since_ms)}"
    lines = (f"reverse mirror of {idle.forward}, idle{since}: the next failback of {idle.forward} begins it again",)
    return (
        AnswerCard("Can it fail over now", "IDLE", "unknown", lines),
        AnswerCard("Loss if the source died now", "none: it is idle", "unknown", ()),
    )


def explain_outdated(assessment: MirrorAssessment, cluster: ClusterSnapshot, mirror: Mirror) -> str:
    """Empty: nothing changed."""
    ended = (r.ended_ms for r in cluster.state.runs.values() if r.plan.mirror == mirror.name and r.ended_ms is not None)
    if max(ended, default=-1) >= cluster.to_broker_time_ms(assessment.at_ms):
        return "not looked at since its last run has ended"
    if assessment.desired not in (None, mirror.desired):
        return f"not looked at since it is {mirror.desired}"
    return ""


def _explain_stale(cluster: ClusterSnapshot, snapshot: MirrorView | None, now_ms: int) -> str:
    state_age, snapshot_age = (
        compute_age(cluster.at_ms, now_ms),
        compute_age(snapshot.at_ms if snapshot else now_ms, now_ms),
    )
    if state_age.stale:
        return f"the state was last read {state_age}"
    return f"both clusters were last looked at {snapshot_age}" if snapshot_age.stale else ""


def _format_unplanned(unplanned: UnplannedForecast | None) -> str:
    if unplanned is None:
        return f"without the source: {UNKNOWN}"
    if unplanned.refused:
        return f"without the source: refused: {'; '.join(finding.text for finding in unplanned.refused)}"
    return f"without the source: possible; read again: {format_read_again(unplanned)}"


def make_loss_card(snapshot: MirrorView | None, mirror: Mirror) -> AnswerCard:
    title = "Loss if the source died now"
    if snapshot is None or snapshot.loss is None:
        return AnswerCard(title, UNKNOWN, "unknown", (f"behind: {UNKNOWN}",))
    loss = snapshot.loss
    behind = f"behind: {'stopped' if mirror.desired is DesiredState.STOPPED else format_behind(loss)}"
    heartbeat_age = (
        UNKNOWN_TIME_TEXT if loss.heartbeat_age_s is None and loss.heartbeats else format_ago(loss.heartbeat_age_s)
    )
    heartbeat = f"newest heartbeat on the destination: {heartbeat_age if loss.heartbeats else 'none'}"
    missing = snapshot.description.facts[FactKey.MISSING_OFFSETS].value if snapshot.description else None
    if not isinstance(missing, int):
        return AnswerCard(title, UNKNOWN, "unknown", (loss.text, behind, heartbeat))
    tone = "good" if is_loss_current(loss) and not missing else "warn"
    return AnswerCard(title, _format_loss(loss, missing), tone, (loss.text, behind, heartbeat))


def _format_loss(loss: LossBound, missing: int) -> str:
    if missing:
        return f"at least {missing:,} offsets"
    within_s = find_oldest([loss.observed_s, loss.topics_listed_s])  # topics may be newer than their listing
    if loss.unknown_partitions or within_s is None or any(p.is_failed for p in loss.partitions.values()):
        return "no offset that is known"
    return f"at most the last {within_s:,.1f} s"


def make_time_card(
    assessment: MirrorAssessment | None, runs: Sequence[RunView], drill_lines: Sequence[str]
) -> AnswerCard:
    predicted_s = assessment.decision.plan.predicted_s if assessment and assessment.decision else None
    last = next((f"last run: {r.kind} {r.id}, {r.state}; without writes: {r.standstill}" for r in runs), "no run yet")
    tone = "unknown" if predicted_s is None else "good"
    predicted = format_value(FigureKey.WITHOUT_WRITES_S, predicted_s)
    lines = [f"last drill: {line}" for line in drill_lines] or ["no drill yet"]
    return AnswerCard("Time without writes", predicted, tone, (last, *lines))


def format_last_drills(cluster: ClusterSnapshot, mirror: Mirror, now_ms: int) -> list[str]:
    """Newest first: a failure in one mode is not hidden by success in the other."""
    newest = dict[RunMode, Run]()
    for run in drills.list_drill_runs(cluster.state.runs.values(), mirror.name):
        newest.setdefault(run.plan.mode, run)
    return [_format_drill(cluster, run, cluster.to_broker_time_ms(now_ms)) for run in newest.values()]


def _format_drill(cluster: ClusterSnapshot, run: Run, now_ms: int) -> str:
    summary = drills.summarize_drill(run, cluster.state.steps_of(run))
    name = "standstill" if summary.mode is RunMode.PLANNED else FIRST_STEP_TEXT
    duration = "none measured" if summary.measured_s is None else f"{summary.measured_s:.1f} s"
    return f"{summary.mode}, {summary.text}, {name} {duration}, {format_since(now_ms, summary.at_ms)}"


def make_comparison_card(
    snapshot: MirrorView | None, cluster: ClusterSnapshot, mirror: Mirror, now_ms: int
) -> AnswerCard:
    description = snapshot.description if snapshot else None
    figures = description.figures if description else {}
    proved_keys = (FigureKey.PROVED_OFFSETS, FigureKey.PROVABLE_OFFSETS)
    values = {key: figure.value for key, figure in figures.items()}
    proved = format_share(values, *proved_keys) if figures else UNKNOWN
    ages = [f"{find_definition(key).label}: {figures[key].text}" for key in figures if key not in proved_keys]
    if description and FactKey.DIFFERENCES in description.not_normal:
        differs = description.facts[FactKey.DIFFERENCES].text
        return AnswerCard("Proved equal", f"the copy differs in {differs}", "bad", (proved,))
    tone = "unknown" if not figures else "good" if figures[FigureKey.PROVED_OFFSETS].value else "warn"
    return AnswerCard(
        "Proved equal", proved, tone, (*ages, f"groups synced {compute_group_sync_age(cluster, mirror, now_ms)}")
    )


def compute_group_sync_age(cluster: ClusterSnapshot, mirror: Mirror, now_ms: int) -> Age:
    return compute_age(cluster.find_group_sync_ms(mirror.name), now_ms)


def explain_incomplete_snapshot(cluster: ClusterSnapshot, snapshot: MirrorView | None) -> str:
    if cluster.unreachable_reason or snapshot is None:
        return cluster.unreachable_reason
    if snapshot.description is None:
        return snapshot.error or ""
    problems = snapshot.description.facts[FactKey.PROBLEMS]
    return problems.text if problems.value else ""

"""What a run did to applications."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from mirror_core.decide.loss_bound import find_unlisted
from mirror_core.decide.steps import list_standstill_steps, measure_duration_s, measure_standstill_s
from mirror_core.model.figures import FIRST_STEP_TEXT, FigureKey, list_values
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName
from mirror_core.model.run import Plan, Run, RunKind, RunMode, RunState, StepEvidence, StepRecord, StepState
from mirror_core.model.text import format_count


class RtoVerdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    UNKNOWN = "unknown"
    """The RTO lies between the shortest and the longest outage that are possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthResult:
    """What the application's health command said after the canary."""

    command: str
    """Its program."""
    is_well: bool
    seconds: float
    """Until it exited 0, or its time was over."""
    problem: str = ""
    """Why its last call failed. Empty: it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutage:
    """Until the promotion. Applications write again when they have followed it."""

    promotion_s: float
    """From the run's first step without writes to the promotion."""
    at_most_s: float | None
    """Since the fence; in an unplanned run since the source was last observed. None: unknown."""
    accepted_s: float | None = None
    """From the start of `at_most_s` until every broker of the destination had taken a canary record. None: unknown."""
    health: HealthResult | None = None
    """Null: no health command is configured, or it was not called."""
    recovered_s: float | None = None
    """From the start of `at_most_s` until the application was well by its health command, or else `accepted_s`. None:
    unknown."""
    rto_s: float | None = None
    """The mirror's limit when the run was approved. None: it had none."""
    rto: RtoVerdict | None = None
    """Null: there was no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncountedLoss:
    unknown_topics: tuple[str, ...] = ()
    """Lost whole, with their numbers of partitions; size unknown."""
    counted_topics: tuple[str, ...] = ()
    """Lost whole, and counted."""
    unknown_partitions: int = 0
    """In other topics."""
    unlisted: str = ""
    uncopied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoss:
    offsets: int | None
    is_minimum: bool = False
    uncounted: UncountedLoss = UncountedLoss()
    unseen_s: float | None = None
    """What the source took in these seconds is not in it."""
    unseen_offsets: int | None = None
    """What that probably was."""
    taken_since: int = 0
    """Offsets that the source took after it was given up, as far as known. They are not in `offsets`."""
    saved: int | None = None
    """Records of both that a failback has saved."""
    saved_to: tuple[str, ...] = ()
    """Folders. Empty: nothing was discarded yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a finished run did."""

    applications: ClusterName
    """Where they write, unless a later run has moved them."""
    old_source: ClusterName
    """Which they left; a failback has brought them back to it."""
    loss: RunLoss | None
    """Null: a failback."""
    saved: int | None = None
    """A failback: records that only the old source had."""
    saved_to: tuple[str, ...] = ()
    """Folders."""
    groups_left: tuple[str, ...] = ()
    """Consumer groups whose offsets were not brought over, and why."""
    moved_by: str = ""
    """The run that moved applications: of a failback, its way home. Empty: unknown."""
    mode: RunMode = RunMode.PLANNED
    """The mode of that run."""
    left: ClusterName
    """The cluster that it moved them from."""
    outage: WriteOutage | None = None
    heartbeats_not_compared: tuple[str, ...] = ()
    """Partitions of Mirrorbook's own heartbeats that a planned failover promoted without a comparison."""


def measure_outage(run: Run, steps: Iterable[StepRecord]) -> WriteOutage | None:
    records = {step.step: step for step in steps}
    promotion_s = measure_standstill_s(run, records.values())
    if promotion_s is None:
        return None
    promoted_ms = records[list_standstill_steps(run.plan.kind, run.plan.mode)[-1]].ended_ms
    at_most_s = promotion_s if run.plan.mode is RunMode.PLANNED else _measure_unobserved_s(run, promoted_ms)
    canary = records.get("canary")
    is_accepted = canary is not None and canary.state is StepState.DONE
    health = read_health(canary.evidence) if canary and is_accepted else None
    health_s = 0.0 if health is None else health.seconds
    checked_s = measure_duration_s(promoted_ms, canary.ended_ms) if canary and is_accepted and promoted_ms else None
    canary_s = None if checked_s is None else max(0.0, checked_s - health_s)
    accepted_s = None if at_most_s is None or canary_s is None else round(at_most_s + canary_s, 3)
    is_unwell = health is not None and not health.is_well
    recovered_s = None if accepted_s is None or is_unwell else round(accepted_s + health_s, 3)
    at_least_s = promotion_s + (checked_s or 0.0) if is_unwell else promotion_s
    rto_s = run.plan.figures.get(FigureKey.RTO_S)
    limit_s = float(rto_s) if isinstance(rto_s, int | float) else None
    return WriteOutage(
        promotion_s=promotion_s,
        at_most_s=at_most_s,
        accepted_s=accepted_s,
        health=health,
        recovered_s=recovered_s,
        rto_s=limit_s,
        rto=None if limit_s is None else judge_rto(limit_s, at_least_s, recovered_s),
    )


def read_health(evidence: StepEvidence) -> HealthResult | None:
    command, seconds = evidence.get(FigureKey.HEALTH_COMMAND), evidence.get(FigureKey.HEALTH_S)
    if command is None or not isinstance(seconds, int | float):
        return None
    return HealthResult(
        command=str(command),
        is_well=evidence.get(FigureKey.HEALTH_WELL) is True,
        seconds=float(seconds),
        problem=str(evidence.get(FigureKey.HEALTH_PROBLEM) or ""),
    )


def _measure_unobserved_s(run: Run, promoted_ms: int | None) -> float | None:
    unseen_s = run.plan.forecast.unseen_s if isinstance(run.plan.forecast, PlanForecast) else None
    conducted_s = measure_duration_s(run.started_ms, promoted_ms)
    if unseen_s is None or conducted_s is None or run.continues is not None:
        return None
    return round(unseen_s + conducted_s, 3)


def judge_rto(rto_s: float, at_least_s: float, at_most_s: float | None) -> RtoVerdict:
    if at_least_s > rto_s:
        return RtoVerdict.MISSED
    return RtoVerdict.MET if at_most_s is not None and at_most_s <= rto_s else RtoVerdict.UNKNOWN


def decide_run_result(
    run: Run,
    steps: Iterable[StepRecord],
    mirror: Mirror,
    reverse: tuple[Run, Iterable[StepRecord]] | None = None,
    failback_steps: Iterable[StepRecord] = (),
) -> RunResult | None:
    """`reverse`: the failover that led a failback's applications home. `failback_steps`: of the failback after a
    failover.
    """
    records = tuple(steps)
    if run.state is not RunState.DONE:
        return None
    if run.plan.kind is RunKind.FAILOVER:
        return RunResult(
            applications=mirror.destination,
            old_source=mirror.source,
            loss=_add_saved(decide_loss(run), tuple(failback_steps)),
            groups_left=list_groups_left(records),
            moved_by=run.id,
            mode=run.plan.mode,
            left=mirror.source,
            outage=measure_outage(run, records),
            heartbeats_not_compared=_list_step_values(records, FigureKey.HEARTBEATS_NOT_COMPARED),
        )
    saved, saved_to = find_saved(records)
    home, home_steps = (None, ()) if reverse is None else (reverse[0], tuple(reverse[1]))
    return RunResult(
        applications=mirror.source,
        old_source=mirror.source,
        loss=None,
        saved=saved,
        saved_to=saved_to,
        groups_left=list_groups_left(home_steps),
        moved_by="" if home is None else home.id,
        mode=RunMode.PLANNED if home is None else home.plan.mode,
        left=mirror.destination,
        outage=None if home is None else measure_outage(home, home_steps),
    )


def list_groups_left(steps: Iterable[StepRecord]) -> tuple[str, ...]:
    return _list_step_values(steps, FigureKey.GROUPS_NOT_BROUGHT_OVER)


def _list_step_values(steps: Iterable[StepRecord], key: FigureKey) -> tuple[str, ...]:
    return next((list_values(step.evidence, key) for step in steps if key in step.evidence), ())


def find_saved(steps: Iterable[StepRecord]) -> tuple[int | None, tuple[str, ...]]:
    """(records, folders), also of what later steps have saved."""
    evidence = {s.step: s.evidence for s in steps if s.state is StepState.DONE}
    salvage, align = evidence.get("salvage", {}), evidence.get("align", {})
    beginnings = [
        e for step in ("salvage", "align", "create_reverse") if (e := evidence.get(step, {})).get("beginnings_folder")
    ]
    count, later_folders = salvage.get("records"), align.get("folder")
    # Another machine saves the same records again: they count once.
    added = [align.get("records_grown_since"), *(e.get("beginnings_records") for e in beginnings[:1])]
    folders = [salvage.get("folder"), *(e["beginnings_folder"] for e in beginnings)]
    folders += later_folders if isinstance(later_folders, tuple) else ()
    return (
        count + sum(number for number in added if isinstance(number, int)) if isinstance(count, int) else None,
        tuple(dict.fromkeys(str(folder) for folder in folders if folder)),
    )


def _add_saved(loss: RunLoss, failback_steps: Collection[StepRecord]) -> RunLoss:
    if not any(step.step == "align" and step.state is StepState.DONE for step in failback_steps):
        return loss
    saved, folders = find_saved(failback_steps)
    return replace(loss, saved=saved, saved_to=folders)


def decide_loss(run: Run) -> RunLoss:
    outcome, forecast = run.forecast_outcome, run.plan.forecast
    found = None if outcome is None else outcome.uncopied
    uncounted = find_uncounted_loss(run.plan) if found is None else UncountedLoss(uncopied=found)
    if outcome is not None and outcome.lost_offsets is not None:
        return RunLoss(
            offsets=outcome.lost_offsets,
            is_minimum=bool(uncounted.unlisted),
            uncounted=UncountedLoss(unlisted=uncounted.unlisted, uncopied=uncounted.uncopied),
            taken_since=outcome.taken_since_offsets,
        )
    if outcome is not None and outcome.least_lost_offsets is not None:
        return RunLoss(
            offsets=outcome.least_lost_offsets,
            is_minimum=True,
            uncounted=uncounted,
            taken_since=outcome.taken_since_offsets,
        )
    if run.plan.mode is RunMode.PLANNED or not isinstance(forecast, PlanForecast):
        return RunLoss(offsets=None)
    return RunLoss(
        offsets=forecast.lost_offsets,
        is_minimum=forecast.lost_is_minimum,
        uncounted=uncounted,
        unseen_s=forecast.taking_s,
        unseen_offsets=forecast.unseen_offsets,
    )


def find_uncounted_loss(plan: Plan) -> UncountedLoss:
    uncopied_values = next((w.values for w in plan.warnings if w.code == "partitions_uncopied"), {})
    unknown = _to_count(plan.figures.get(FigureKey.LOST_UNKNOWN_PARTITIONS))
    is_counted = isinstance(plan.forecast, PlanForecast) and plan.forecast.lost_offsets is not None
    return UncountedLoss(
        unknown_topics=_to_names(uncopied_values.get("unknown_topics")),
        counted_topics=_to_names(uncopied_values.get("counted_topics")),
        unknown_partitions=unknown - _to_count(uncopied_values.get("unknown_in_topics")) if is_counted else 0,
        unlisted=_format_unlisted(plan),
    )


def _format_unlisted(plan: Plan) -> str:
    if FigureKey.TOPICS_LISTED_S not in plan.figures:
        return ""  # no loss was expected: drained, or planned
    listed_s, observed_s = (plan.figures.get(key) for key in (FigureKey.TOPICS_LISTED_S, FigureKey.SOURCE_SEEN_S))
    unlisted = find_unlisted(
        "the source",
        listed_s if isinstance(listed_s, int | float) else None,
        observed_s if isinstance(observed_s, int | float) else None,
    )
    return str(unlisted or "")


def _to_count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _to_names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def format_uncounted(loss: UncountedLoss) -> str:
    """Follows a loss. Empty: that counts all."""
    if loss == UncountedLoss():
        return ""
    finding = Finding(
        "loss_uncounted",
        unknown_topics=loss.unknown_topics,
        counted_topics=loss.counted_topics,
        others=loss.unknown_partitions,
        unlisted=loss.unlisted,
        uncopied=loss.uncopied,
    )
    return f"; and {finding}"


def format_run_loss(loss: RunLoss, source: ClusterName) -> str:
    if loss.offsets == 0 and not loss.is_minimum:
        return "nothing"
    if loss.offsets is None and not loss.is_minimum:
        return "unknown: the report says what was compared"
    counted = "unknown" if loss.offsets is None else format_count(loss.offsets, "offset")
    uncounted = format_uncounted(loss.uncounted)
    least = f"at least {counted}" if loss.is_minimum and loss.offsets is not None else counted
    if loss.offsets == 0:  # "at least 0" would be read as 0
        least = "unknown, and of what could be counted nothing"
    if loss.unseen_s is None:
        return f"{least}{uncounted}"
    unseen = "an unknown number" if loss.unseen_offsets is None else f"about {loss.unseen_offsets:,}"
    probable = f"{unseen} not copied if it wrote on as before, none once it was down"
    counted_first = "" if loss.offsets == 0 else f"{least}, and "
    return (
        f"{counted_first}what {source} took in the {loss.unseen_s:,.1f} s before, when nobody observed it"
        f" ({probable}); the exact number is known when {source} is back{uncounted}"
    )


def format_outage(outage: WriteOutage | None, mode: RunMode, source: str) -> str:
    if outage is None:
        return "unknown"
    if mode is RunMode.PLANNED:
        return f"{outage.promotion_s:,.1f} s, from the fence to the promotion"
    finding = Finding("unplanned_outage", source, at_most_s=outage.at_most_s)
    return f"{finding}; {FIRST_STEP_TEXT}: {outage.promotion_s:,.1f} s"


def format_rto(outage: WriteOutage) -> str:
    if outage.rto is None or outage.rto_s is None:
        return ""
    health, recovered_s = outage.health, outage.recovered_s
    program = "" if health is None else health.command
    match outage.rto:
        case RtoVerdict.MET:
            return str(Finding("rto_met", limit_s=outage.rto_s, program=program, recovered_s=recovered_s))
        case RtoVerdict.MISSED:
            is_unwell = health is not None and not health.is_well
            late = program if is_unwell and outage.promotion_s <= outage.rto_s else ""
            return str(Finding("rto_missed", limit_s=outage.rto_s, program=late, promotion_s=outage.promotion_s))
        case RtoVerdict.UNKNOWN:
            promotion_s = outage.promotion_s
            return str(Finding("rto_unknown", limit_s=outage.rto_s, promotion_s=promotion_s, recovered_s=recovered_s))


def format_health(health: HealthResult) -> str:
    if health.is_well:
        return str(Finding("application_well", program=health.command, seconds=health.seconds))
    return str(Finding("application_not_well", program=health.command, seconds=health.seconds, problem=health.problem))


def format_outage_briefly(outage: WriteOutage | None, mode: RunMode) -> str:
    if outage is None:
        return "unknown"
    judged = "" if outage.rto is None else f" (RTO {outage.rto_s:,.0f} s: {outage.rto})"
    if mode is RunMode.PLANNED:
        return f"{outage.promotion_s:.1f} s{judged}"
    most = "unknown" if outage.at_most_s is None else f"up to {outage.at_most_s:.1f} s"
    return f"{most}; {FIRST_STEP_TEXT} {outage.promotion_s:.1f} s{judged}"

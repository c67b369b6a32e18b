"""What a run did to applications: where they write, what was lost or saved, for how long they could not write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_core.decide.steps import list_standstill_steps, measure_duration_s, measure_standstill_s
from mirror_core.model.forecast import PlanForecast
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepRecord, StepState


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutage:
    """Until the promotion. Applications write again when they have followed it."""

    promotion_s: float
    """From the run's first step without writes to the promotion."""
    at_most_s: float | None
    """Since the fence; in an unplanned run since the source was last observed. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoss:
    offsets: int | None
    is_minimum: bool = False
    unseen_s: float | None = None
    """What the source took in these seconds is not in it."""
    unseen_offsets: int | None = None
    """What that probably was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a finished run did."""

    applications: ClusterName
    """Where they write."""
    old_source: ClusterName
    """Which they left; a failback has brought them back to it."""
    loss: RunLoss | None
    """Null: a failback."""
    saved: int | None = None
    """A failback: records that only the old source had."""
    saved_to: str = ""
    outage: WriteOutage | None = None


def measure_outage(run: Run, steps: Iterable[StepRecord]) -> WriteOutage | None:
    """None if the run did not promote."""
    records = {step.step: step for step in steps}
    promotion_s = measure_standstill_s(run, records.values())
    if promotion_s is None:
        return None
    if run.plan.mode is RunMode.PLANNED:
        return WriteOutage(promotion_s=promotion_s, at_most_s=promotion_s)
    unseen_s = run.plan.forecast.unseen_s if isinstance(run.plan.forecast, PlanForecast) else None
    promoted_ms = records[list_standstill_steps(run.plan.kind, run.plan.mode)[-1]].ended_ms
    conducted_s = measure_duration_s(run.started_ms, promoted_ms)
    if unseen_s is None or conducted_s is None or run.continues is not None:
        return WriteOutage(promotion_s=promotion_s, at_most_s=None)
    return WriteOutage(promotion_s=promotion_s, at_most_s=round(unseen_s + conducted_s, 3))


def decide_run_result(
    run: Run, steps: Iterable[StepRecord], mirror: Mirror, reverse: tuple[Run, Iterable[StepRecord]] | None = None
) -> RunResult | None:
    """None unless it is done. `reverse`: the failover that led a failback's applications home."""
    records = tuple(steps)
    if run.state is not RunState.DONE:
        return None
    if run.plan.kind is RunKind.FAILOVER:
        return RunResult(
            applications=mirror.destination,
            old_source=mirror.source,
            loss=decide_loss(run),
            outage=measure_outage(run, records),
        )
    saved, saved_to = find_saved(records)
    outage = None if reverse is None else measure_outage(*reverse)
    return RunResult(
        applications=mirror.source,
        old_source=mirror.source,
        loss=None,
        saved=saved,
        saved_to=saved_to,
        outage=outage,
    )


def find_saved(steps: Iterable[StepRecord]) -> tuple[int | None, str]:
    """Records that a failback's salvage saved, and their folder."""
    salvage = next((s for s in steps if s.step == "salvage" and s.state is StepState.DONE), None)
    count = salvage.evidence.get("records") if salvage else None
    folder = salvage.evidence.get("folder") if salvage else None
    return count if isinstance(count, int) else None, str(folder or "")


def decide_loss(run: Run) -> RunLoss:
    """By what was counted, or else by the plan."""
    outcome, forecast = run.forecast_outcome, run.plan.forecast
    if outcome is not None and outcome.lost_offsets is not None:
        return RunLoss(offsets=outcome.lost_offsets)
    if run.plan.mode is RunMode.PLANNED or not isinstance(forecast, PlanForecast):
        return RunLoss(offsets=None)
    return RunLoss(
        offsets=forecast.lost_offsets,
        is_minimum=forecast.lost_is_minimum,
        unseen_s=forecast.unseen_s,
        unseen_offsets=forecast.unseen_offsets,
    )


def format_outage(outage: WriteOutage | None, mode: RunMode, source: str) -> str:
    if outage is None:
        return "unknown"
    if mode is RunMode.PLANNED:
        return f"{outage.promotion_s:,.1f} s, from the fence to the promotion"
    promotion = f"first step to promotion: {outage.promotion_s:,.1f} s"
    if outage.at_most_s is None:
        return f"unknown since when until the promotion, and until applications followed; {promotion}"
    return (
        f"up to {outage.at_most_s:,.1f} s until the promotion, and until applications followed: {source} was last"
        f" observed {outage.at_most_s:,.1f} s before it; {promotion}"
    )


def format_outage_briefly(outage: WriteOutage | None, mode: RunMode) -> str:
    """For a cell of a table."""
    if outage is None:
        return "unknown"
    if mode is RunMode.PLANNED:
        return f"{outage.promotion_s:.1f} s"
    most = "unknown" if outage.at_most_s is None else f"up to {outage.at_most_s:.1f} s"
    return f"{most}; first step to promotion {outage.promotion_s:.1f} s"

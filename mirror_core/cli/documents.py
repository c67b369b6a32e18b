"""JSON of plans and runs, stable as in docs/operate/commands.md."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from mirror_core.decide.conducting import ConductorState, ConductorStatus
from mirror_core.decide.reckoning import ForecastComparison
from mirror_core.model.documents import JsonDocument
from mirror_core.model.run import (
    FailbackStrategy,
    Plan,
    PlanStep,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepEvidence,
    StepRecord,
    StepState,
)


class PlanDocument(JsonDocument, frozen=True, kw_only=True):
    """What a run would do. Approvals are bound to the hash."""

    kind: RunKind
    mirror: str
    mode: RunMode
    hash: str
    """Twelve hexadecimal digits."""
    steps: tuple[PlanStep, ...]
    figures: Mapping[str, str]
    """Lag, records read again, predicted seconds... As text; may be `unknown`."""
    partitions: Mapping[str, str]
    """Figures by partition, the most important first; not all of many."""
    groups: Mapping[str, str]
    """Figures by consumer group."""
    rights: tuple[str, ...] | None
    """What promotion would grant, the first of many; null: unknown."""
    bound: Mapping[str, str]
    """What the approval is bound to: states, ids, groups, grants."""
    strategies: Mapping[str, FailbackStrategy]
    """Failback: by topic."""
    discarded: int | None
    """Failback: offsets to be salvaged and discarded; null: unknown."""
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]
    """What could not be read, and why."""
    refused: tuple[str, ...]
    """Why it may not run. Empty for a run's own plan."""


class ConductorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A run's conductor, as last seen, by that host's clock; null: unknown."""

    state: ConductorState
    by: str | None
    host: str | None
    pid: int | None
    seen_ms: int | None
    text: str
    """As text."""


class StepDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt at a step."""

    step: str
    state: StepState
    attempt: int
    started_ms: int
    ended_ms: int | None
    evidence: StepEvidence
    """Counts, verdicts, examples."""
    error: str


class RunDocument(JsonDocument, frozen=True, kw_only=True):
    """A run of a failover or a failback."""

    id: str
    state: RunState
    plan: PlanDocument
    plan_hash: str
    started_by: str
    approved_by: str
    """Empty: nobody was asked."""
    conducted_by: str
    """The last conductor."""
    conducted: ConductorDocument | None
    """Null: ended."""
    started_ms: int
    ended_ms: int | None
    note: str
    steps: tuple[StepDocument, ...]
    """Begun ones; none in `runs list`."""


class RunsDocument(JsonDocument, frozen=True, kw_only=True):
    """Runs known to the configured clusters, newest first."""

    runs: tuple[RunDocument, ...]
    silent: Mapping[str, str]
    """Clusters that did not answer, and why."""


class ForecastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's forecast and the outcome."""

    run: str
    mirror: str
    """A drill has its own."""
    mode: RunMode
    started_ms: int
    rows: tuple[ForecastComparison, ...]


class ForecastDocument(JsonDocument, frozen=True, kw_only=True):
    """Finished failovers and drills, newest first."""

    mirror: str
    runs: tuple[ForecastRun, ...]


def to_plan_document(plan: Plan, reasons: tuple[str, ...]) -> PlanDocument:
    return PlanDocument(
        kind=plan.kind,
        mirror=plan.mirror,
        mode=plan.mode,
        hash=plan.hash,
        steps=plan.steps,
        figures=plan.figures,
        partitions=plan.partitions,
        groups=plan.groups,
        rights=None if plan.rights is UNSET else plan.rights,
        bound={fact.name: fact.value for fact in plan.bound_facts},
        strategies=plan.strategies,
        discarded=plan.discarded,
        warnings=plan.warnings,
        unknown=plan.unknown,
        refused=reasons,
    )


def to_run_document(run: Run, steps: tuple[StepRecord, ...], conductor_status: ConductorStatus | None) -> RunDocument:
    return RunDocument(
        id=run.id,
        state=run.state,
        plan=to_plan_document(run.plan, ()),
        plan_hash=run.plan_hash,
        started_by=run.started_by,
        approved_by=run.approved_by,
        conducted_by=run.conducted_by,
        conducted=None if conductor_status is None else _to_conductor_document(conductor_status),
        started_ms=run.started_ms,
        ended_ms=run.ended_ms,
        note=run.note,
        steps=tuple(
            StepDocument(
                step=s.step,
                state=s.state,
                attempt=s.attempt,
                started_ms=s.started_ms,
                ended_ms=s.ended_ms,
                evidence=s.evidence,
                error=s.error,
            )
            for s in steps
        ),
    )


def to_forecast_run(run: Run, rows: tuple[ForecastComparison, ...]) -> ForecastRun:
    return ForecastRun(run=run.id, mirror=run.plan.mirror, mode=run.plan.mode, started_ms=run.started_ms, rows=rows)


def _to_conductor_document(conductor_status: ConductorStatus) -> ConductorDocument:
    return ConductorDocument(
        state=conductor_status.state,
        by=conductor_status.by or None,
        host=conductor_status.host or None,
        pid=conductor_status.pid,
        seen_ms=conductor_status.last_seen_ms,
        text=str(conductor_status),
    )

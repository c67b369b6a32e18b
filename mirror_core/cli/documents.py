"""JSON of plans and runs, stable as in docs/operate/commands.md."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from mirror_core.decide.conducting import Conducted, Sign
from mirror_core.decide.reckoning import Row
from mirror_core.model.documents import Document
from mirror_core.model.run import (
    Evidence,
    Mode,
    Plan,
    PlanStep,
    Run,
    RunKind,
    RunState,
    StepRecord,
    StepState,
    Strategy,
)


class PlanDocument(Document, frozen=True, kw_only=True):
    """What a run would do. Approvals are bound to the hash."""

    kind: RunKind
    mirror: str
    mode: Mode
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
    strategies: Mapping[str, Strategy]
    """Failback: by topic."""
    discarded: int | None
    """Failback: offsets to be salvaged and discarded; null: unknown."""
    warnings: tuple[str, ...]
    unknown: tuple[str, ...]
    """What could not be read, and why."""
    refused: tuple[str, ...]
    """Why it may not run. Empty for a run's own plan."""


class ConductedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A run's conductor, as last seen, by that host's clock; null: unknown."""

    sign: Sign
    by: str | None
    host: str | None
    pid: int | None
    seen_ms: int | None
    words: str
    """As text."""


class StepDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempt at a step."""

    step: str
    state: StepState
    attempt: int
    started_ms: int
    ended_ms: int | None
    evidence: Evidence
    """Counts, verdicts, examples."""
    error: str


class RunDocument(Document, frozen=True, kw_only=True):
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
    conducted: ConductedDocument | None
    """Null: ended."""
    started_ms: int
    ended_ms: int | None
    note: str
    steps: tuple[StepDocument, ...]
    """Begun ones; none in `runs list`."""


class RunsDocument(Document, frozen=True, kw_only=True):
    """Runs known to the configured clusters, newest first."""

    runs: tuple[RunDocument, ...]
    silent: Mapping[str, str]
    """Clusters that did not answer, and why."""


class ForecastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's forecast and the outcome."""

    run: str
    mirror: str
    """A drill has its own."""
    mode: Mode
    started_ms: int
    rows: tuple[Row, ...]


class ForecastDocument(Document, frozen=True, kw_only=True):
    """Finished failovers and drills, newest first."""

    mirror: str
    runs: tuple[ForecastRun, ...]


def plan_document(plan: Plan, reasons: tuple[str, ...]) -> PlanDocument:
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
        bound={fact.name: fact.value for fact in plan.bound},
        strategies=plan.strategies,
        discarded=plan.discarded,
        warnings=plan.warnings,
        unknown=plan.unknown,
        refused=reasons,
    )


def run_document(run: Run, steps: tuple[StepRecord, ...], now: Conducted | None) -> RunDocument:
    return RunDocument(
        id=run.id,
        state=run.state,
        plan=plan_document(run.plan, ()),
        plan_hash=run.plan_hash,
        started_by=run.started_by,
        approved_by=run.approved_by,
        conducted_by=run.conducted_by,
        conducted=None if now is None else _conducted_document(now),
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


def forecast_document(run: Run, rows: tuple[Row, ...]) -> ForecastRun:
    return ForecastRun(run=run.id, mirror=run.plan.mirror, mode=run.plan.mode, started_ms=run.started_ms, rows=rows)


def _conducted_document(now: Conducted) -> ConductedDocument:
    return ConductedDocument(
        sign=now.sign,
        by=now.by or None,
        host=now.host or None,
        pid=now.pid,
        seen_ms=now.seen_ms,
        words=str(now),
    )

"""Plans and runs of failover and failback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import UNSET, UnsetType

from mirror_core.model.figures import Figures, FigureValue
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import ForecastOutcome, PlanForecast
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName

StepEvidence = Mapping[str, FigureValue]
"""Without secrets. Later steps read checkpoints instead."""
AIRFLOW_CONDUCTOR_PREFIX: Final = "airflow "
"""Before a DAG run; other conductors are commands."""
SHOWN_HASH_DIGITS: Final = 12


class RunKind(StrEnum):
    FAILOVER = "failover"
    FAILBACK = "failback"


class RunMode(StrEnum):
    PLANNED = "planned"
    UNPLANNED = "unplanned"


class FailbackStrategy(StrEnum):
    NONE = "none"
    """The old source has nothing beyond it."""
    RECREATE = "recreate"
    """Salvage the divergent tail, recreate the topic, copy from offset 0."""
    HANDOVER = "handover"
    """Salvage, let a new replica that ends earlier join the in-sync replicas and lead, copy from there."""
    OFFLINE = "offline"
    """Salvage, truncate the log of a stopped broker, copy from there."""
    REPLICA = "replica"
    """Salvage, stop the leader, elect a new replica that ends earlier, copy from there."""


class RunState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"
    SUPERSEDED = "SUPERSEDED"
    """Its source died; an unplanned run went on."""


class StepState(StrEnum):
    STARTED = "STARTED"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    name: str
    action: str
    reversible: bool = True
    """False from the point of no return on: only a failback leads back."""


class FactLifetime(StrEnum):
    UNTIL_BEGUN = "until the run begins"
    """The run changes or checks it itself."""
    WHILE_SOURCE_ANSWERS = "until promotion, while the source is seen"
    """Only the source can tell it. A source that died after fence, drain and comparison contradicts
    nothing."""
    UNTIL_PROMOTION = "until promotion"


@dataclass(frozen=True, slots=True)
class PlanFact:
    """Never a number that always changes."""

    name: str
    value: str
    lifetime: FactLifetime = FactLifetime.UNTIL_BEGUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    kind: RunKind
    mirror: MirrorName
    mode: RunMode
    steps: tuple[PlanStep, ...]
    bound_facts: tuple[PlanFact, ...]
    warnings: tuple[Finding, ...] = ()
    unknown: tuple[Finding, ...] = ()
    figures: Figures = field(default_factory=dict)
    """Not hashed, nor are those of `partitions` and `groups`."""
    partitions: Mapping[str, Figures] = field(default_factory=dict)
    groups: Mapping[str, Figures] = field(default_factory=dict)
    strategies: Mapping[str, FailbackStrategy] = field(default_factory=dict)
    discarded: int | None = None
    """Only on the old source; salvaged, then given up."""
    forecast: PlanForecast | UnsetType = UNSET
    """Not hashed. Unset: a failback, or a failover of a mirror that was failed over before."""
    rights: tuple[str, ...] | UnsetType = UNSET
    """The first that promotion grants. Not hashed."""

    @property
    def predicted_s(self) -> float | None:
        """Planned: without writes; unplanned: from the first step to promotion."""
        return self.forecast.seconds if isinstance(self.forecast, PlanForecast) else None

    def predict_read_again(self, group: str) -> int | None:
        """At most."""
        forecast = self.forecast.reread_offsets if isinstance(self.forecast, PlanForecast) else {}
        return forecast[group][1] if group in forecast else None

    @property
    def hash(self) -> str:
        """SHA-256 of steps, bound facts, strategies and unknowns."""
        content = {
            "kind": self.kind,
            "mirror": self.mirror,
            "mode": self.mode,
            "steps": [[s.name, s.action, s.reversible] for s in self.steps],
            "bound": sorted([f.name, f.value, f.lifetime] for f in self.bound_facts),
            "strategies": dict(sorted(self.strategies.items())),
            "unknown": sorted(([m.code, m.subject, m.facts] for m in self.unknown), key=json.dumps),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shorten_hash(plan_hash: str) -> str:
    """For display. Approvals compare the whole hash."""
    return plan_hash[:SHOWN_HASH_DIGITS]


def is_hash_of(recorded: str, plan_hash: str) -> bool:
    """`recorded` may be a short hash."""
    return recorded == plan_hash or (len(recorded) == SHOWN_HASH_DIGITS and plan_hash.startswith(recorded))


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    id: str
    name: str
    at_ms: int | None
    approval_id: str | UnsetType = UNSET
    """New for each approval."""
    until_ms: int | UnsetType = UNSET
    """Last time to begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    id: str
    number: int
    """Orders one state topic's runs, whatever clocks say. See `State.next_run_number`."""
    plan: Plan
    plan_hash: str
    state: RunState
    started_by: str
    started_ms: int
    desired: DesiredState
    """At the start, restored by an abort."""
    conducted_by: str
    failback_run: str = ""
    ended_ms: int | None = None
    note: str = ""
    approved_by: str = ""
    approvals: tuple[Approval, ...] = ()
    set_run: str = ""
    set_mirrors: tuple[str, ...] = ()
    """Moved by `set_run`. Empty: not recorded."""
    continues: str | None = None
    """Planned run that this one took over, with its fence and drained data."""
    source_silent: bool = False
    """No source broker answered at approval. Giving up one that answers later needs a confirmation of its own."""
    forecast_outcome: ForecastOutcome | None = None

    @property
    def leading_kind(self) -> RunKind:
        """A failback conducts the failover home."""
        return RunKind.FAILBACK if self.failback_run else self.plan.kind


def list_newest_first(runs: Iterable[Run]) -> list[Run]:
    """Not by times, which come from whichever machine began a run."""
    return sorted(runs, key=lambda run: -run.number)


def find_last_begun(runs: Iterable[Run]) -> Run | None:
    return max(runs, key=lambda run: run.number, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    run: str
    step: str
    state: StepState
    attempt: int
    started_ms: int
    ended_ms: int | None = None
    evidence: StepEvidence = field(default_factory=dict)
    error: str = ""
    first_started_ms: int | None = None
    """First attempt, when this is a later one."""

    @property
    def first_attempt_ms(self) -> int:
        return self.started_ms if self.first_started_ms is None else self.first_started_ms

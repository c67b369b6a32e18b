"""Plans and runs of failover and failback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mirror_core.model.names import MirrorName

Evidence = Mapping[str, str | int | float | bool | tuple[str | int, ...] | None]
"""What a step saw: flat, JSON-able, without secrets."""


class RunKind(StrEnum):
    FAILOVER = "failover"
    FAILBACK = "failback"


class Mode(StrEnum):
    PLANNED = "planned"
    UNPLANNED = "unplanned"


class RunState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"


class StepState(StrEnum):
    STARTED = "STARTED"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One step of a plan, in words for a person and as the engine's name for it."""

    name: str
    action: str
    """What will be done, in one sentence."""
    reversible: bool = True
    """False from the point of no return on: after this step only a failback leads back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do. The hash binds an approval to it."""

    kind: RunKind
    mirror: MirrorName
    mode: Mode
    steps: tuple[PlanStep, ...]
    bound: Mapping[str, str]
    """Facts the approval is bound to: states, cluster and topic ids, groups, grants. No number that always moves."""
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be seen, and why."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Lag, records to be read again, predicted seconds...: shown, not hashed; the word `unknown` is a value."""
    strategies: Mapping[str, str] = field(default_factory=dict)
    """Failback: topic-partition to strategy, with the count of records that would be discarded in `figures`."""

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits over steps, bound facts, strategies and what was unknown."""
        content = {
            "kind": self.kind,
            "mirror": self.mirror,
            "mode": self.mode,
            "steps": [[s.name, s.action, s.reversible] for s in self.steps],
            "bound": dict(sorted(self.bound.items())),
            "strategies": dict(sorted(self.strategies.items())),
            "unknown": sorted(self.unknown),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a plan. Lives in the state topic of the mirror's destination."""

    id: str
    plan: Plan
    plan_hash: str
    state: RunState
    started_by: str
    started_ms: int
    ended_ms: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The journal's newest word on one step of a run."""

    run: str
    step: str
    state: StepState
    attempt: int
    started_ms: int
    ended_ms: int | None = None
    evidence: Evidence = field(default_factory=dict)
    error: str = ""

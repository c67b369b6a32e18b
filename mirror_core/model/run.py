"""Plans and runs of failover and failback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import UNSET, UnsetType

from mirror_core.model.mirror import Desired
from mirror_core.model.names import MirrorName
from mirror_core.model.reckoning import Counted, Foretold

Evidence = Mapping[str, str | int | float | bool | None]
"""What a step saw, for people: counts, verdicts, the first few of something. Flat, without secrets; nobody reads it
back: what a later step needs is a checkpoint."""


AIRFLOW: Final = "airflow "
"""How the name of a conductor begins that is a DAG run; any other one is a command's."""


SHOWN_HASH_DIGITS: Final = 12
"""Of a plan's hash, in tables and questions."""


class RunKind(StrEnum):
    FAILOVER = "failover"
    FAILBACK = "failback"


class Mode(StrEnum):
    PLANNED = "planned"
    UNPLANNED = "unplanned"


class Strategy(StrEnum):
    """How a topic's log on the old source is taken back to the last mirrored offset."""

    NONE = "none"
    """Nothing to take back: the old source has nothing beyond it."""
    RECREATE = "recreate"
    """Salvage the divergent tail, delete the topic, create it with the same settings, copy it anew from offset 0."""
    OFFLINE = "offline"
    """Salvage it, cut the log in the folder of a stopped broker, copy anew from the cut on."""
    REPLICA = "replica"
    """Salvage it, let a new replica that ends before it lead, copy anew from that end on."""


class RunState(StrEnum):
    RUNNING = "RUNNING"
    DONE = "DONE"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"
    SUPERSEDED = "SUPERSEDED"
    """Its source died, and an unplanned run went on from where it was."""


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


class Lasts(StrEnum):
    """How long a fact has to hold that somebody has approved."""

    UNTIL_BEGUN = "until the run begins"
    """The run itself changes it, or finds out by itself."""
    WHILE_SEEN = "until promotion, while the source is seen"
    """Only the source can tell it. One that has died since it was fenced, drained and compared contradicts nothing."""
    UNTIL_PROMOTION = "until promotion"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that an approval is bound to. No number that always moves."""

    name: str
    """Unique within a plan, and naming the culprit: `topic orders`."""
    value: str
    lasts: Lasts = Lasts.UNTIL_BEGUN


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would do. The hash binds an approval to it."""

    kind: RunKind
    mirror: MirrorName
    mode: Mode
    steps: tuple[PlanStep, ...]
    bound: tuple[Fact, ...]
    """What the approval is bound to: states, cluster and topic ids, groups, grants."""
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be seen, and why."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Lag, records to be read again, predicted seconds...: shown, not hashed; the word `unknown` is a value."""
    partitions: Mapping[str, str] = field(default_factory=dict)
    """The same of single partitions, those that matter most first; of many only the first."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """The same of consumer groups."""
    strategies: Mapping[str, Strategy] = field(default_factory=dict)
    """Failback: what becomes of each topic."""
    discarded: int | None = None
    """Failback: offsets that only the old source has, to be salvaged and then given up. None: unknown."""
    foretold: Foretold | UnsetType = UNSET
    """A failover's figures as numbers: not hashed. Unset, and not in the JSON, of plans of an older Mirrorbook: their
    runs hold that JSON's digest."""
    rights: tuple[str, ...] | UnsetType = UNSET
    """A failover: what its promotion would give to applications, the first of many; not hashed. Unset as above, and
    where it is not known."""

    @property
    def hash(self) -> str:
        """SHA-256 in hexadecimal over steps, bound facts, strategies and what was unknown; see `short_hash`."""
        content = {
            "kind": self.kind,
            "mirror": self.mirror,
            "mode": self.mode,
            "steps": [[s.name, s.action, s.reversible] for s in self.steps],
            "bound": sorted([f.name, f.value, f.lasts] for f in self.bound),
            "strategies": dict(sorted(self.strategies.items())),
            "unknown": sorted(self.unknown),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def short_hash(plan_hash: str) -> str:
    """As much of a plan's hash as people are shown. What is approved and compared is the whole."""
    return plan_hash[:SHOWN_HASH_DIGITS]


def is_hash_of(recorded: str, plan_hash: str) -> bool:
    """Whether a run recorded this hash: an older Mirrorbook recorded as much of it as it showed."""
    return recorded == plan_hash or (len(recorded) == SHOWN_HASH_DIGITS and plan_hash.startswith(recorded))


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Somebody said yes to a plan."""

    id: str
    """Of the person: by which whoever asked tells people apart."""
    name: str
    at_ms: int | None
    """Wall clock of whoever asked; None: not known."""
    approval_id: str | UnsetType = UNSET
    """Its own: whoever says yes again gives another one. Unset, and not in the JSON, of an older Mirrorbook."""
    until_ms: int | UnsetType = UNSET
    """The last moment at which something may be begun by it, by the same clock. Unset as above, and where `at_ms` is
    not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a plan. Lives in the state topic of the mirror's destination."""

    id: str
    plan: Plan
    plan_hash: str
    state: RunState
    started_by: str
    started_ms: int
    desired: Desired
    """What the operator wanted of the mirror when the run began: an abort goes back to it."""
    conducted_by: str
    """Who takes its steps now: whoever took it over last."""
    homecoming: str = ""
    """Of a reverse mirror's failover: id of the failback run whose way home it is."""
    ended_ms: int | None = None
    note: str = ""
    approved_by: str = ""
    """Who approved the plan, as the terminal or Airflow knows them; empty: nobody was asked."""
    approvals: tuple[Approval, ...] = ()
    """The same, each with its id, its time and its limit, where they are known."""
    part_of: str = ""
    """The failover of a set of mirrors that it belongs to."""
    continues: str | None = None
    """The planned run that this one has taken over, with its fence and what it had drained."""
    source_silent: bool = False
    """Of an unplanned one: no broker of the source answered when it was approved. One that answers later is given up
    only by a word of its own."""
    counted: Counted | None = None
    """What became of what was foretold. None: nothing was counted (yet)."""


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
    first_ms: int | None = None
    """When its first attempt began, of a later one: what that had done may have stood since."""

    @property
    def begun_ms(self) -> int:
        return self.started_ms if self.first_ms is None else self.first_ms

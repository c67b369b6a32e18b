"""Values that a step stores for later steps, or for itself after a crash."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from mirror_core.model.audit_log import to_canonical_json
from mirror_core.model.config_sections import SetOrder
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Approval


class StepValue(Protocol):
    """Raise `VERSION` when older code cannot read it."""

    VERSION: ClassVar[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    run: str
    """For watcher heartbeats, shown plans and approvals: the mirror's name."""
    step: str
    kind: str
    version: int
    value: str
    """JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeartbeat:
    VERSION: ClassVar[int] = 1
    token: str
    """New for each conducting process."""
    by: str
    host: str
    boot_id: str
    pid: int
    start_ticks: int | None
    """See `supervisor.process_identity`."""
    at_ms: int
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherHeartbeat:
    VERSION: ClassVar[int] = 1
    by: str
    host: str
    pid: int
    at_ms: int
    interval_s: float
    """Longest time between two probes."""
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNote:
    """An observation that a person adds after the run; the run's own evidence stays unchanged."""

    VERSION: ClassVar[int] = 1
    run: str
    at_ms: int
    """By the brokers' clock."""
    by: str
    text: str
    key: str | None = None
    """Key that signed it. None: unsigned."""
    signature: str | None = None
    """Over all other fields."""

    @property
    def content(self) -> str:
        return to_canonical_json(replace(self, signature=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """Shown by Airflow for approval, recorded by the task that made it."""

    VERSION: ClassVar[int] = 1
    question: str
    plan_hash: str
    body_sha256: str
    at_ms: int
    silent_sources: tuple[MirrorName, ...] = ()
    asks_again: bool = True
    """Before applications are stopped; the text says so where not."""
    set_mirrors: tuple[MirrorName, ...] = ()
    """Members of the planned set; empty: one mirror's plan."""
    set_order: SetOrder = SetOrder.SIDE_BY_SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedApproval:
    VERSION: ClassVar[int] = 1
    question: str
    task: str
    approves: str
    """Hash of the shown plan; for `go_ahead`, the id of the mirror's or set's run."""
    approval: Approval

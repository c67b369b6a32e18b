"""What a step of a run leaves for a later one, or for itself after a crash: typed values, as the journal keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from mirror_core.model.names import MirrorName
from mirror_core.model.run import Approval


class Keepable(Protocol):
    """A frozen dataclass of plain values. Its number rises when an older Mirrorbook could not read it any more.

    If it can still be read from what older ones have kept, `OLDEST` says from which number on.
    """

    VERSION: ClassVar[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One such value in the state topic. A later one of the same run, step and kind replaces it."""

    run: str
    """Of a watcher's sign of life, a plan that was shown, an approval: the mirror, which runs come and go beside."""
    step: str
    kind: str
    """Name of the value's type."""
    version: int
    """`VERSION` of its type when it was written."""
    value: str
    """JSON of the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A sign of life of whoever conducts a run."""

    VERSION: ClassVar[int] = 1
    token: str
    """Another one each time that somebody begins to conduct."""
    by: str
    """As the run says who conducts it."""
    host: str
    boot: str
    pid: int
    started: int | None
    """Which process it is: see `supervisor/identity.py`."""
    at_ms: int
    """By that host's wall clock."""
    released: bool = False
    """It has let go of the run, in an orderly way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """A sign of life of whoever keeps the old source of a failover fenced. Of several watchers the newest one counts.

    It stands among what steps keep: an older Mirrorbook reads on over it.
    """

    VERSION: ClassVar[int] = 1
    by: str
    """What it is: a command, or a DAG."""
    host: str
    pid: int
    at_ms: int
    """By that host's wall clock."""
    every_s: float
    """It looks at least so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPlan:
    """A plan that Airflow asks people about, recorded by the task that made it. Stored like a sign of life."""

    VERSION: ClassVar[int] = 1
    question: str
    """DAG, DAG run, and the task that made the plan."""
    plan_hash: str
    """Of the plan, of all plans of a set, or of another change that needs approval."""
    body_sha256: str
    """Of the Markdown that people are shown."""
    at_ms: int
    silent: tuple[MirrorName, ...] = ()
    """Mirrors whose sources were silent, which the plan gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedApproval:
    """An answer to such a question, recorded by the task that asked. Stored beside the plan."""

    VERSION: ClassVar[int] = 1
    question: str
    task: str
    approves: str
    """Hash of the plan that was shown; of `go_ahead`, id of the run or of the set's failover."""
    approval: Approval

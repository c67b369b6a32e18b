"""What a step of a run leaves for a later one, or for itself after a crash: typed values, as the journal keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


class Keepable(Protocol):
    """A frozen dataclass of plain values. Its number rises when an older Mirrorbook could not read it any more.

    If it can still be read from what older ones have kept, `OLDEST` says from which number on.
    """

    VERSION: ClassVar[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One such value in the state topic. A later one of the same run, step and kind replaces it."""

    run: str
    """Of a watcher's sign of life: the mirror, which runs come and go beside."""
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

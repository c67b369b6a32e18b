"""What a run keeps of the commands that it has called, and whether it has called the source's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mirror_core.model.run import Run
from mirror_core.state.records import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Shut:
    """Kept by a run before it calls `fence_command`, and after: an abort then opens the cluster again."""

    VERSION: ClassVar[int] = 1
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Kept by a run before it calls `unfence_command` for the destination, and after."""

    VERSION: ClassVar[int] = 1
    cluster: str


def has_shut(state: State, run: Run) -> bool:
    """Whether this run has called the source's `fence_command`, or was about to."""
    return any(of == run.id and kind == Shut.__name__ for of, _, kind in state.checkpoints)

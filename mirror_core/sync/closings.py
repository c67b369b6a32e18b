"""Programs of the user that fence a cluster, and lift that, where Kafka's ACLs do not rule it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mirror_core.model.run import Run
from mirror_core.state.records import State


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterClosed:
    """Recorded before and after `fence_command`: an abort then opens the cluster."""

    VERSION: ClassVar[int] = 1
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationOpened:
    """Recorded before and after the destination's `unfence_command`."""

    VERSION: ClassVar[int] = 1
    cluster: str


def has_closed_source(state: State, run: Run) -> bool:
    """Whether the run has called the source's `fence_command`, or was about to."""
    return any(run_id == run.id and kind == ClusterClosed.__name__ for run_id, _, kind in state.checkpoints)

"""Pending fences, shared by tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors import fence_watcher
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import RunState
from mirror_core.state.state_records import Tombstone
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.fence_acls import lift_fence
from tests.support.checked_threads import beside
from tests.support.kafka_clients import Pair
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.unplanned_runs import begin

TIMEOUT_S = 90.0


@dataclass
class Watched:
    """A watcher in a thread, and what it has told."""

    told: list[FenceDecision] = field(default_factory=list)

    def all_told(self) -> str:
        return "\n".join(line for found in self.told for line in (*found.lines, *found.alarms))


@contextmanager
def watching(mirrored: Mirrored) -> Iterator[Watched]:
    stop, watched = threading.Event(), Watched()

    with beside(
        partial(fence_watcher.watch_fence, mirrored.link, stop, watched.told.append), stop.set, name="watching"
    ):
        yield watched


def copied(pair: Pair, folder: Path, *topics: str) -> Mirrored:
    mirrored = new_mirror(pair, folder, *topics)
    mirrored.copy()
    return mirrored


def promoted(mirrored: Mirrored) -> PendingFence:
    run = begin(mirrored.failover)
    assert mirrored.failover.drive(run.id).state is RunState.DONE
    return debt_of(mirrored)


def debt_of(mirrored: Mirrored) -> PendingFence:
    return mirrored.state.pending_fences[mirrored.name]


def stood(found: FenceDecision) -> FenceDecision | None:
    return found if found.state is FenceState.APPLIED else None


def lifted_by_another(mirrored: Mirrored) -> None:
    """What a failback does until it lets go of the fence."""
    with (
        StateWriter(mirrored.link.destination, make_control_id(mirrored.name)) as other,
        ClusterClient(mirrored.link.source) as source,
    ):
        lift_fence(mirrored.link.mirror, other, source)
        other.put(Tombstone(other.state.pending_fences[mirrored.name]))

"""Plans shown and approvals given in Airflow, for the conductor to verify.

Checkpoints written without the owner's transactional id: they fence nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.checkpoint import Checkpoint, RecordedApproval, ShownPlan
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.aside import Aside
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import TOPIC, Forget, State

WRITE_TIMEOUT_S: Final = 20.0
KEPT_MS: Final = 24 * 3_600_000
"""An approval is valid for an hour."""

Kept = TypeVar("Kept", ShownPlan, RecordedApproval)


def shown_plan(state: State, mirror: MirrorName, question: str) -> ShownPlan | None:
    """None: not recorded."""
    return next((s for _, s in _kept(state, mirror, ShownPlan) if s.question == question), None)


def recorded_approvals(state: State, mirror: MirrorName, question: str) -> tuple[RecordedApproval, ...]:
    """Unreadable records approve nothing."""
    return tuple(r for _, r in _kept(state, mirror, RecordedApproval) if r.question == question)


def record_plan(cluster: ClusterConfig, state: State, mirror: MirrorName, shown: ShownPlan) -> None:
    """Also deletes expired records."""
    old = [c for c, s in _kept(state, mirror, ShownPlan) if s.at_ms < shown.at_ms - KEPT_MS]
    old += [c for c, r in _kept(state, mirror, RecordedApproval) if (r.approval.at_ms or 0) < shown.at_ms - KEPT_MS]
    _write(cluster, [*map(Forget, old), checkpoint(mirror, _step(shown.question), shown)])


def record_approval(cluster: ClusterConfig, mirror: MirrorName, approval: RecordedApproval) -> None:
    """Replaces the task's earlier answer."""
    _write(cluster, [checkpoint(mirror, _step(f"{approval.question}/{approval.task}"), approval)])


def _step(question: str) -> str:
    """Hashed: DAG run names are arbitrary."""
    return f"approval-{hashlib.sha256(question.encode()).hexdigest()[:32]}"


def _kept(state: State, mirror: MirrorName, kind: type[Kept]) -> Iterator[tuple[Checkpoint, Kept]]:
    for found in state.checkpoints.values():
        if (found.run, found.kind, found.version) == (mirror, kind.__name__, kind.VERSION):
            try:
                yield found, msgspec.json.decode(found.value, type=kind)
            except msgspec.MsgspecError:
                continue


def _write(cluster: ClusterConfig, records: Iterable[Checkpoint | Forget]) -> None:
    """Unreachable if not acknowledged."""
    aside, lost = Aside(cluster), list[str]()
    for record in records:
        aside.put(record, lost.append)
    if not aside.empty(WRITE_TIMEOUT_S):
        lost.append(f"no answer within {WRITE_TIMEOUT_S:.0f} s")
    if lost:
        raise Unreachable(f"cluster {cluster.name}, topic {TOPIC}: an approval was not recorded: {lost[0]}")

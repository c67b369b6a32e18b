"""Plans shown and approvals given in Airflow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from mirror_core.decide.approval_rules import to_broker_clock
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.names import MirrorName
from mirror_core.model.run_checkpoints import RecordedApproval, ShownPlan
from mirror_core.model.timing import CLOCK_TIMEOUT_S, now_ms
from mirror_core.state.journal import iter_checkpoints, make_checkpoint
from mirror_core.state.non_transactional_writer import write_acknowledged
from mirror_core.state.state_records import State, Tombstone

APPROVAL_RETENTION_MS: Final = 24 * 3_600_000
"""An approval is valid for an hour."""
_NOUN: Final = "an approval"


def find_shown_plan(state: State, mirror: MirrorName, question: str) -> ShownPlan | None:
    return next((plan for _, plan in iter_checkpoints(state, mirror, ShownPlan) if plan.question == question), None)


def find_approvals(state: State, mirror: MirrorName, question: str) -> tuple[RecordedApproval, ...]:
    """Unreadable records approve nothing."""
    return tuple(
        approval for _, approval in iter_checkpoints(state, mirror, RecordedApproval) if approval.question == question
    )


def iter_set_plans(states: Iterable[State], question: str, plan_hash: str) -> Iterator[ShownPlan]:
    """Unchecked: where a cluster is a source only, applications may write its state topic.

    A DAG run may have the id of an earlier one, which planned something else.
    """
    plans = (find_shown_plan(state, mirror, question) for state in states for mirror in state.mirrors)
    return (plan for plan in plans if plan is not None and plan.set_mirrors and plan.plan_hash == plan_hash)


def record_plan(cluster: ClusterConfig, state: State, mirror: MirrorName, plan: ShownPlan) -> None:
    """Also deletes expired records, and answers about what this question showed before."""
    expired = [
        record
        for record, old_plan in iter_checkpoints(state, mirror, ShownPlan)
        if old_plan.at_ms < plan.at_ms - APPROVAL_RETENTION_MS
    ]
    expired += [
        record
        for record, old_approval in iter_checkpoints(state, mirror, RecordedApproval)
        if old_approval.question == plan.question
        or (old_approval.approval.at_ms or 0) < plan.at_ms - APPROVAL_RETENTION_MS
    ]
    checkpoint = make_checkpoint(mirror, _format_step(plan.question), plan)
    write_acknowledged(cluster, [*map(Tombstone, expired), checkpoint], _NOUN)


def record_approval(cluster: ClusterConfig, mirror: MirrorName, approval: RecordedApproval) -> None:
    """Replaces the task's earlier answer. A conductor compares its time with the brokers' clock."""
    ahead_ms = measure_clock_ahead_ms(cluster, timeout_s=CLOCK_TIMEOUT_S)
    approval = replace(approval, approval=to_broker_clock(approval.approval, now_ms(), ahead_ms))
    step = _format_step(f"{approval.question}/{approval.task}")
    write_acknowledged(cluster, [make_checkpoint(mirror, step, approval)], _NOUN)


def list_used_approvals(state: State, mirror: MirrorName, question: str) -> list[Tombstone]:
    """To be written in the transaction that does what was approved."""
    return _list_tombstones(state, mirror, lambda approval: approval.question == question)


def use_up_approvals(cluster: ClusterConfig, state: State, mirror: MirrorName, question: str) -> None:
    """After what was approved is done. A run need not: it records the approvals that began it."""
    _delete_approvals(cluster, state, mirror, lambda approval: approval.question == question)


def withdraw_approval(cluster: ClusterConfig, state: State, mirror: MirrorName, question: str, task: str) -> None:
    """The task asks again, and the next answer may be a no."""
    _delete_approvals(cluster, state, mirror, lambda approval: (approval.question, approval.task) == (question, task))


def _delete_approvals(
    cluster: ClusterConfig, state: State, mirror: MirrorName, is_deleted: Callable[[RecordedApproval], bool]
) -> None:
    deleted = _list_tombstones(state, mirror, is_deleted)
    if deleted:
        write_acknowledged(cluster, deleted, _NOUN)


def _list_tombstones(
    state: State, mirror: MirrorName, is_deleted: Callable[[RecordedApproval], bool]
) -> list[Tombstone]:
    return [
        Tombstone(record)
        for record, approval in iter_checkpoints(state, mirror, RecordedApproval)
        if is_deleted(approval)
    ]


def _format_step(question: str) -> str:
    """Hashed: DAG run names are arbitrary."""
    return f"approval-{hashlib.sha256(question.encode()).hexdigest()[:32]}"

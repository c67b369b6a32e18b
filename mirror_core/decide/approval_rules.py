"""Whether enough people have approved a plan, and recently enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from string import hexdigits
from typing import Final

from msgspec import UNSET

from mirror_core.decide.clock_skew import to_broker_clock_ms
from mirror_core.model.findings import Finding
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import (
    Approval,
    Plan,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepRecord,
    StepState,
    find_last_begun,
    is_hash_of,
    shorten_hash,
)
from mirror_core.model.run_checkpoints import RecordedApproval

APPROVAL_VALIDITY_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Approvals that must be in the state topic before a conductor acts. Configured, never chosen by a run."""

    question: str
    tasks: tuple[str, ...]
    approvers: frozenset[str] | None


def is_approver(policy: ApprovalPolicy, approval: Approval) -> bool:
    return bool(approval.id) and (policy.approvers is None or approval.id in policy.approvers)


def select_valid_approvals(policy: ApprovalPolicy, recorded: Iterable[RecordedApproval]) -> tuple[Approval, ...]:
    by_task = {
        record.task: record.approval
        for record in recorded
        if record.question == policy.question and is_approver(policy, record.approval)
    }
    return tuple(by_task[task] for task in policy.tasks if task in by_task)


def explain_not_approved(
    policy: ApprovalPolicy, recorded: Collection[RecordedApproval], approves: str, now_ms: int
) -> tuple[str, ...]:
    """Empty: a run may begin. `approves`: the plan hash or run id that must be approved."""
    relevant = [record for record in recorded if record.question == policy.question and record.task in policy.tasks]
    approvals = select_valid_approvals(policy, [record for record in relevant if record.approves == approves])
    unauthorized = [record.approval for record in relevant if not is_approver(policy, record.approval)]
    reasons = [f"{approval.name} ({approval.id}) may not approve here" for approval in unauthorized]
    reasons += [
        f"task {record.task} was answered about {_format_approved(record.approves)}, and this is"
        f" {_format_approved(approves)}: clear it, it asks again"
        for record in relevant
        if record.approves != approves
    ]
    reasons += explain_missing_approvals(approvals, len(policy.tasks))
    if not reasons:
        reasons += explain_stale_approvals(approvals, now_ms)
    if not approvals and not relevant:
        reasons += [f"a task that is marked as done is no approval: clear {policy.tasks[0]}, and it asks"]
    return tuple(reasons)


def _format_approved(approves: str) -> str:
    is_run = not all(digit in hexdigits for digit in approves)
    return f"run {approves}" if is_run else f"plan {shorten_hash(approves)}"


def make_approval(approval_id: str, person: str, name: str, at_ms: int | None) -> Approval:
    until_ms = UNSET if at_ms is None else at_ms + round(APPROVAL_VALIDITY_S * 1000)
    return Approval(id=person, name=name, at_ms=at_ms, approval_id=approval_id, until_ms=until_ms)


def to_broker_clock(approval: Approval, now_ms: int, ahead_ms: int | None) -> Approval:
    """Dated by the brokers' clock, and not later than now: it would be valid for too long.

    `now_ms`: this machine's clock, and Airflow's API server's; ahead of the brokers' by `ahead_ms`.
    """
    if approval.at_ms is None:
        return approval
    at_ms = to_broker_clock_ms(min(approval.at_ms, now_ms), ahead_ms)
    return replace(approval, at_ms=at_ms, until_ms=at_ms + round(APPROVAL_VALIDITY_S * 1000))


def explain_missing_approvals(approvals: Sequence[Approval], people: int) -> tuple[str, ...]:
    return tuple(_list_missing_approvals(approvals, people))


def explain_stale_approvals(approvals: Sequence[Approval], now_ms: int) -> tuple[str, ...]:
    if not approvals:
        return ()
    newest = max(
        (validity for approval in approvals if (validity := _find_validity(approval)) is not None), default=None
    )
    if newest is not None and now_ms <= newest[1]:
        return ()
    names = ", ".join(approval.name for approval in approvals)
    at_ms, until_ms = newest or (0, round(APPROVAL_VALIDITY_S * 1000))
    age_text = "nobody knows when" if newest is None else f"{(now_ms - at_ms) / 60_000:.0f} minutes ago"
    validity_text = f"an approval holds for {(until_ms - at_ms) / 60_000:.0f}"
    return (f"{names} approved it {age_text}, and {validity_text}: plan anew, and ask again",)


def _find_validity(approval: Approval) -> tuple[int, int] | None:
    if approval.at_ms is None:
        return None
    limit_ms = approval.at_ms + round(APPROVAL_VALIDITY_S * 1000)
    return approval.at_ms, limit_ms if approval.until_ms is UNSET else min(approval.until_ms, limit_ms)


def explain_stale_run_approval(run: Run, now_ms: int) -> str:
    """Empty: people need not look at the plan again before the fence.

    A run without a known approval counts as approved when it began.
    """
    default_validity = (run.started_ms, run.started_ms + round(APPROVAL_VALIDITY_S * 1000))
    approved_ms, until_ms = max(
        (validity for approval in run.approvals if (validity := _find_validity(approval)) is not None),
        default=default_validity,
    )
    if now_ms <= until_ms:
        return ""
    ago_text = f"{(now_ms - approved_ms) / 60_000:.0f} minutes ago by {run.approved_by or 'nobody'}"
    return f"run {run.id} was approved {ago_text}, and an approval holds for {(until_ms - approved_ms) / 60_000:.0f}"


def must_confirm_before_fence(run: Run, *, is_noticed: bool) -> bool:
    """`is_noticed`: applications are affected already, so asking would only delay."""
    return run.plan.mode is RunMode.PLANNED and run.state is RunState.RUNNING and not is_noticed


def explain_expired_run(run: Run, later_approvals: Sequence[Approval], steps: Iterable[StepRecord], now_ms: int) -> str:
    """Empty: a task may stop applications with these approvals.

    `later_approvals`: to go on. A long comparison that ended within the validity time is no standstill.
    """
    validities = [
        validity
        for approval in (*run.approvals, *later_approvals)
        if (validity := _find_validity(approval)) is not None
    ]
    step_ends = [step.ended_ms for step in steps if step.state is StepState.DONE and step.ended_ms is not None]
    run_start = () if validities or step_ends else (run.started_ms,)
    last_ms, until_ms = max(
        (*validities, *((at_ms, at_ms + round(APPROVAL_VALIDITY_S * 1000)) for at_ms in (*step_ends, *run_start)))
    )
    if now_ms <= until_ms:
        return ""
    return (
        f"it was approved, and a step of it was done last, {(now_ms - last_ms) / 60_000:.0f} minutes ago, and an "
        f"approval holds for {(until_ms - last_ms) / 60_000:.0f}: abort it and plan anew, or `mirrorbook "
        f"{run.plan.kind} resume {run.plan.mirror}` shows its plan and asks"
    )


def find_run_to_resume(own_runs: Iterable[Run], plan_hash: str, in_effect_ids: Collection[str]) -> Run | None:
    """A repeated task continues it instead of beginning a new one.

    `own_runs`: begun by the same conductor.
    """
    candidates = (
        run
        for run in own_runs
        if run.state is RunState.RUNNING
        or (run.state is RunState.DONE and run.id in in_effect_ids and is_hash_of(run.plan_hash, plan_hash))
    )
    return find_last_begun(candidates)


def is_in_effect(run: Run, runs: Iterable[Run], pending_fence: PendingFence | None) -> bool:
    """A finished run still describes its mirror: no later run is active or done, and a failover's fence is pending or
    applied. Not for a failback's reverse mirror.
    """
    ended_states = (RunState.ABORTED, RunState.SUPERSEDED)
    if any(
        other_run.plan.mirror == run.plan.mirror
        and other_run.number > run.number
        and other_run.state not in ended_states
        for other_run in runs
    ):
        return False
    if run.plan.kind is RunKind.FAILBACK:
        return pending_fence is None or pending_fence.action is not FenceAction.APPLY
    return pending_fence is not None and pending_fence.action is FenceAction.APPLY and pending_fence.run == run.id


def list_runs_begun_by(runs: Iterable[Run], mirror: str, kind: RunKind, conductor: str) -> list[Run]:
    return [r for r in runs if (r.plan.mirror, r.plan.kind, r.started_by) == (mirror, kind, conductor)]


def explain_used_approvals(runs: Iterable[Run], approvals: Sequence[Approval]) -> tuple[str, ...]:
    remedy = "trigger a new run, and it asks again"
    return tuple(
        f"run {run.id} was begun by this approval and is {run.state}, and an approval is for one run: {remedy}"
        for run in runs
        if any(_is_same_approval(used_approval, other) for used_approval in run.approvals for other in approvals)
    )


def _is_same_approval(approval: Approval, other: Approval) -> bool:
    has_same_id = approval.approval_id is not UNSET and approval.approval_id == other.approval_id
    return has_same_id or (approval.id, approval.name, approval.at_ms) == (other.id, other.name, other.at_ms)


def _is_same_person(approval: Approval, other: Approval) -> bool:
    """Some auth managers make two users of `Ann` and `ann`."""
    return any(
        name.strip().casefold() == other_name.strip().casefold()
        for name, other_name in ((approval.id, other.id), (approval.name, other.name))
    )


def is_losing(warning: Finding) -> bool:
    """A planned failover would lose records by it."""
    return warning.code in ("partitions_failed", "deleted_early")


def count_failed(warnings: Iterable[Finding]) -> int:
    """Partitions that a plan promotes as they are, at least: 0 if a planned failover would lose nothing."""
    return sum(int(str(warning.values.get("count", 1))) for warning in warnings if is_losing(warning))


def explain_source_answers_again(
    source: str,
    command: str,
    *,
    was_silent: bool,
    has_answered: bool,
    has_answered_fully: bool,
    failed: int = 0,
    held_run: Run | None = None,
) -> tuple[str, ...]:
    if not (was_silent and has_answered):
        return ()
    condition = "" if has_answered_fully else f" as soon as {source} tells all that is asked"
    lost = str(Finding("planned_loss", failed=failed))
    advice = f"With --mode planned {lost} is lost{condition}"
    if held_run is not None:
        advice = (
            f"Run {held_run.id} can go on{condition}, and loses {lost}: `mirrorbook failover resume"
            f" {held_run.plan.mirror}`"
        )
    return (
        (
            f"{source} answers by now, and no broker of it did when this plan was approved. {advice}. Or `mirrorbook "
            f"{command} --mode unplanned` shows the new plan: who approves that one gives up what was not copied, and "
            "knows that it answers, so it holds also if it comes and goes"
        ),
    )


def explain_living_source(source: str, plan_hash: str | None, failed: int) -> Finding:
    """Why --yes, with or without a hash, does not give up a source that answers, also in part."""
    return Finding("living_source_needs_person", source, approved_hash=shorten_hash(plan_hash or ""), failed=failed)


def explain_outdated_plan(plan: Plan, plan_hash: str | None) -> tuple[str, ...]:
    if plan_hash in (None, plan.hash):
        return ()
    current = shorten_hash(plan.hash)
    return (f"plan {shorten_hash(plan_hash)} is out of date, the current one is {current}: review it",)


def _list_missing_approvals(approvals: Sequence[Approval], people: int) -> Iterator[str]:
    repeated_names = {b.name for a, b in combinations(approvals, 2) if _is_same_person(a, b)}
    for name in sorted(repeated_names):
        yield f"{name} has approved it already: the next approval must be another person's"
    if len(approvals) < people:
        approver_names = ", ".join(approval.name for approval in approvals) or "nobody"
        needed = "1 person has" if people == 1 else f"{people} people have"
        yield f"{needed} to approve it, and so far {approver_names} did"

"""Whether enough people have approved a plan, and recently enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from string import hexdigits
from typing import Final

from msgspec import UNSET

from mirror_core.model.checkpoint import RecordedApproval
from mirror_core.model.run import (
    Approval,
    Mode,
    Plan,
    Run,
    RunKind,
    RunState,
    StepRecord,
    StepState,
    is_hash_of,
    short_hash,
)
from mirror_core.model.standing import Debt, Owed

HOLDS_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Approvals that must be in the state topic before a conductor acts. Configured, never chosen by a
    run.
    """

    question: str
    tasks: tuple[str, ...]
    approvers: frozenset[str] | None


def is_approver(policy: ApprovalPolicy, approval: Approval) -> bool:
    return bool(approval.id) and (policy.approvers is None or approval.id in policy.approvers)


def verified(policy: ApprovalPolicy, recorded: Iterable[RecordedApproval]) -> tuple[Approval, ...]:
    found = {r.task: r.approval for r in recorded if r.question == policy.question and is_approver(policy, r.approval)}
    return tuple(found[task] for task in policy.tasks if task in found)


def unapproved(
    policy: ApprovalPolicy, recorded: Collection[RecordedApproval], approves: str, now_ms: int
) -> tuple[str, ...]:
    """Why no run may begin; empty: it may. `approves`: the plan hash or run id that must be approved."""
    asked = [r for r in recorded if r.question == policy.question and r.task in policy.tasks]
    approvals = verified(policy, [r for r in asked if r.approves == approves])
    strangers = [r.approval for r in asked if not is_approver(policy, r.approval)]
    reasons = [f"{one.name} ({one.id}) may not approve here" for one in strangers]
    reasons += [
        f"task {r.task} was answered about {_shown(r.approves)}, and this is {_shown(approves)}: clear it, "
        "it asks again"
        for r in asked
        if r.approves != approves
    ]
    reasons += unmet(approvals, len(policy.tasks))
    if not reasons:
        reasons += stale(approvals, now_ms)
    if not approvals and not asked:
        reasons += [f"a task that is marked as done is no approval: clear {policy.tasks[0]}, and it asks"]
    return tuple(reasons)


def _shown(approves: str) -> str:
    is_run = not all(digit in hexdigits for digit in approves)
    return f"run {approves}" if is_run else f"plan {short_hash(approves)}"


def given(approval_id: str, person: str, name: str, at_ms: int | None) -> Approval:
    until_ms = UNSET if at_ms is None else at_ms + round(HOLDS_S * 1000)
    return Approval(id=person, name=name, at_ms=at_ms, approval_id=approval_id, until_ms=until_ms)


def unmet(approvals: Sequence[Approval], people: int) -> tuple[str, ...]:
    return tuple(_unmet(approvals, people))


def stale(approvals: Sequence[Approval], now_ms: int) -> tuple[str, ...]:
    if not approvals:
        return ()
    newest = max((held for one in approvals if (held := _held(one)) is not None), default=None)
    if newest is not None and now_ms <= newest[1]:
        return ()
    names = ", ".join(one.name for one in approvals)
    at_ms, until_ms = newest or (0, round(HOLDS_S * 1000))
    since = "nobody knows when" if newest is None else f"{(now_ms - at_ms) / 60_000:.0f} minutes ago"
    holds = f"an approval holds for {(until_ms - at_ms) / 60_000:.0f}"
    return (f"{names} approved it {since}, and {holds}: plan anew, and ask again",)


def _held(one: Approval) -> tuple[int, int] | None:
    """When it was given and until when it is valid: as recorded, but never longer than HOLDS_S allows."""
    if one.at_ms is None:
        return None
    ours = one.at_ms + round(HOLDS_S * 1000)
    return one.at_ms, ours if one.until_ms is UNSET else min(one.until_ms, ours)


def approved_long_ago(run: Run, now_ms: int) -> str:
    """Why people must look at the plan again before the fence; empty: they need not.

    A run without a known approval counts as approved when it began.
    """
    begun = (run.started_ms, run.started_ms + round(HOLDS_S * 1000))
    approved_ms, until_ms = max((held for one in run.approvals if (held := _held(one)) is not None), default=begun)
    if now_ms <= until_ms:
        return ""
    ago = f"{(now_ms - approved_ms) / 60_000:.0f} minutes ago by {run.approved_by or 'nobody'}"
    return f"run {run.id} was approved {ago}, and an approval holds for {(until_ms - approved_ms) / 60_000:.0f}"


def asks_before_it_stops(run: Run, *, noticed: bool) -> bool:
    """Whether to ask once more before the fence. `noticed`: applications are affected already, so asking
    would only delay.
    """
    return run.plan.mode is Mode.PLANNED and run.state is RunState.RUNNING and not noticed


def expired(run: Run, agreed: Sequence[Approval], steps: Iterable[StepRecord], now_ms: int) -> str:
    """Why a task may not stop applications with these approvals; empty: it may.

    `agreed`: later approvals to go on; `steps`: the run's so far. A run whose last step ended within the validity time
    has not stood still, however long its comparison took.
    """
    said = [held for one in (*run.approvals, *agreed) if (held := _held(one)) is not None]
    ended = [step.ended_ms for step in steps if step.state is StepState.DONE and step.ended_ms is not None]
    begun = () if said or ended else (run.started_ms,)
    last_ms, until_ms = max((*said, *((at_ms, at_ms + round(HOLDS_S * 1000)) for at_ms in (*ended, *begun))))
    if now_ms <= until_ms:
        return ""
    return (
        f"it was approved, and a step of it was done last, {(now_ms - last_ms) / 60_000:.0f} minutes ago, and an "
        f"approval holds for {(until_ms - last_ms) / 60_000:.0f}: abort it and plan anew, or `mirrorbook "
        f"{run.plan.kind} resume {run.plan.mirror}` shows its plan and asks"
    )


def taken_up(own: Iterable[Run], plan_hash: str, standing: Collection[str]) -> Run | None:
    """The run that a repeated task continues instead of beginning a new one.

    `own`: runs begun by the same conductor. A run qualifies if it has not ended, or is done with this plan hash and
    listed in `standing`.
    """
    able = (
        run
        for run in own
        if run.state is RunState.RUNNING
        or (run.state is RunState.DONE and run.id in standing and is_hash_of(run.plan_hash, plan_hash))
    )
    return max(able, key=lambda run: run.started_ms, default=None)


def is_in_effect(run: Run, runs: Iterable[Run], debt: Debt | None) -> bool:
    """Whether a finished run still describes its mirror: no later run is active or done, and a failover's
    fence is pending or applied.

    For the reverse mirror of a failback see the conductor's `in_effect`.
    """
    over = (RunState.ABORTED, RunState.SUPERSEDED)
    if any(r.plan.mirror == run.plan.mirror and r.started_ms > run.started_ms and r.state not in over for r in runs):
        return False
    if run.plan.kind is RunKind.FAILBACK:
        return debt is None or debt.owed is not Owed.FENCE
    return debt is not None and debt.owed is Owed.FENCE and debt.run == run.id


def begun_by(runs: Iterable[Run], mirror: str, kind: RunKind, conductor: str) -> list[Run]:
    return [r for r in runs if (r.plan.mirror, r.plan.kind, r.started_by) == (mirror, kind, conductor)]


def used_up(begun: Iterable[Run], approvals: Sequence[Approval]) -> tuple[str, ...]:
    way = "trigger a new run, and it asks again"
    return tuple(
        f"run {run.id} was begun by this approval and is {run.state}, and an approval is for one run: {way}"
        for run in begun
        if any(_same(one, other) for one in run.approvals for other in approvals)
    )


def _same(one: Approval, other: Approval) -> bool:
    ids = one.approval_id is not UNSET and one.approval_id == other.approval_id
    return ids or (one.id, one.name, one.at_ms) == (other.id, other.name, other.at_ms)


def come_back(
    source: str, command: str, *, silent: bool, answers: bool, seen: bool, held: Run | None = None
) -> tuple[str, ...]:
    if not (silent and answers):
        return ()
    when = "" if seen else f" as soon as {source} tells all that is asked"
    planned = f"With --mode planned nothing is lost{when}"
    if held is not None:
        planned = f"Run {held.id} can go on{when}, and loses nothing: `mirrorbook failover resume {held.plan.mirror}`"
    return (
        f"{source} answers by now, and no broker of it did when this plan was approved. {planned}. Or `mirrorbook "
        f"{command} --mode unplanned` shows the new plan: who approves that one gives up what was not copied, and "
        "knows that it answers, so it holds also if it comes and goes",
    )


def approved_unseen(plan_hash: str | None, answering: Sequence[str], *, yes: bool) -> tuple[str, ...]:
    if not (plan_hash and yes and answering):
        return ()
    return (
        f"{', '.join(answering)} answers, and hash {short_hash(plan_hash)} does not tell whether it did when somebody "
        "approved the plan: read it, and run it without --yes",
    )


def answers_in_part(source: str) -> str:
    return (
        f"{source} answers, if only in part: --mode planned loses nothing, as soon as it tells all. This one gives up "
        f"whatever {source} has acknowledged and is not copied yet"
    )


def other_plan(plan: Plan, plan_hash: str | None) -> tuple[str, ...]:
    if plan_hash in (None, plan.hash):
        return ()
    current = short_hash(plan.hash)
    return (
        f"plan {short_hash(plan_hash)} is out of date, the current one is {current}: review it",
        *whole_hash_needed(plan_hash, plan.hash),
    )


def whole_hash_needed(plan_hash: str, current: str) -> tuple[str, ...]:
    if len(plan_hash) < len(current) and current.startswith(plan_hash):
        return (f"a plan is named by its whole hash, of {len(current)} digits: `plan` prints it, also with --json",)
    return ()


def _unmet(approvals: Sequence[Approval], people: int) -> Iterator[str]:
    again = {b.name for a, b in combinations(approvals, 2) if a.id == b.id or a.name == b.name}
    for name in sorted(again):
        yield f"{name} has approved it already: the next approval must be another person's"
    if len(approvals) < people:
        so_far = ", ".join(one.name for one in approvals) or "nobody"
        needed = "1 person has" if people == 1 else f"{people} people have"
        yield f"{needed} to approve it, and so far {so_far} did"

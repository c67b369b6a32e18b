"""Whether enough people have approved a plan, and not too long ago. Pure."""

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
"""A plan that nobody has approved for so long is stale; and so is an approval that nothing was begun by for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Which approvals a conductor has to find in the state topic before it acts. Configured, never a run's choice."""

    question: str
    """See `ShownPlan.question`."""
    tasks: tuple[str, ...]
    """Those that ask. Each has to be answered, by another person."""
    approvers: frozenset[str] | None
    """Ids of the only people whose approval counts; None: whoever may answer in Airflow."""


def is_approver(policy: ApprovalPolicy, approval: Approval) -> bool:
    return bool(approval.id) and (policy.approvers is None or approval.id in policy.approvers)


def verified(policy: ApprovalPolicy, recorded: Iterable[RecordedApproval]) -> tuple[Approval, ...]:
    """The approvals that count, whatever they approve, in the order in which they are asked for."""
    found = {r.task: r.approval for r in recorded if r.question == policy.question and is_approver(policy, r.approval)}
    return tuple(found[task] for task in policy.tasks if task in found)


def unapproved(
    policy: ApprovalPolicy, recorded: Collection[RecordedApproval], approves: str, now_ms: int
) -> tuple[str, ...]:
    """Why nothing may be begun by the approvals that are recorded; empty when it may. `approves`: what they have to
    be about."""
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
    """An approval as it is journalled. `person`: see `Approval.id`."""
    until_ms = UNSET if at_ms is None else at_ms + round(HOLDS_S * 1000)
    return Approval(id=person, name=name, at_ms=at_ms, approval_id=approval_id, until_ms=until_ms)


def unmet(approvals: Sequence[Approval], people: int) -> tuple[str, ...]:
    """Why a plan may not be run that so many people have to approve; empty when they have."""
    return tuple(_unmet(approvals, people))


def stale(approvals: Sequence[Approval], now_ms: int) -> tuple[str, ...]:
    """Why nothing may be begun by these any more; empty when it may, also where nobody was asked. The newest counts:
    whoever gave it has seen the same plan, and knew of the others."""
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
    """When it was given, and until when it holds: as it says, and never for longer than ours do; None: not known."""
    if one.at_ms is None:
        return None
    ours = one.at_ms + round(HOLDS_S * 1000)
    return one.at_ms, ours if one.until_ms is UNSET else min(one.until_ms, ours)


def approved_long_ago(run: Run, now_ms: int) -> str:
    """Why somebody has to look at a run's plan again before applications are stopped by it; empty when nobody has to.
    Where nobody's approval is known, it was begun as soon as it was approved."""
    begun = (run.started_ms, run.started_ms + round(HOLDS_S * 1000))
    approved_ms, until_ms = max((held for one in run.approvals if (held := _held(one)) is not None), default=begun)
    if now_ms <= until_ms:
        return ""
    ago = f"{(now_ms - approved_ms) / 60_000:.0f} minutes ago by {run.approved_by or 'nobody'}"
    return f"run {run.id} was approved {ago}, and an approval holds for {(until_ms - approved_ms) / 60_000:.0f}"


def asks_before_it_stops(run: Run, *, noticed: bool) -> bool:
    """Whether somebody is asked once more, when all is proved, before a run stops applications. `noticed`: they have
    noticed it already, so a question would only make them wait."""
    return run.plan.mode is Mode.PLANNED and run.state is RunState.RUNNING and not noticed


def expired(run: Run, agreed: Sequence[Approval], steps: Iterable[StepRecord], now_ms: int) -> str:
    """Why a task may not stop applications by a run's approvals any more; empty when it may.

    `agreed`: who has said since that it may go on; `steps`: those of the run so far. A run of which a step ended within
    the time that an approval holds has not stood still, however long its proof took.
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
    """The run that a task which is repeated goes on with, instead of beginning one. `own`: runs that the same conductor
    has begun; one that has not ended, or is done by the plan with this hash, and is among the `standing` ones."""
    able = (
        run
        for run in own
        if run.state is RunState.RUNNING
        or (run.state is RunState.DONE and run.id in standing and is_hash_of(run.plan_hash, plan_hash))
    )
    return max(able, key=lambda run: run.started_ms, default=None)


def is_in_effect(run: Run, runs: Iterable[Run], debt: Debt | None) -> bool:
    """Whether a finished run is still what its mirror is in, by the state that the run is in: no later one is under way
    or done, and, of a failover, its fence is still owed or stands. Of a way home: see `Conductor.in_effect`."""
    over = (RunState.ABORTED, RunState.SUPERSEDED)
    if any(r.plan.mirror == run.plan.mirror and r.started_ms > run.started_ms and r.state not in over for r in runs):
        return False
    if run.plan.kind is RunKind.FAILBACK:
        return debt is None or debt.owed is not Owed.FENCE
    return debt is not None and debt.owed is Owed.FENCE and debt.run == run.id


def begun_by(runs: Iterable[Run], mirror: str, kind: RunKind, conductor: str) -> list[Run]:
    """Runs of a mirror that this conductor has begun."""
    return [r for r in runs if (r.plan.mirror, r.plan.kind, r.started_by) == (mirror, kind, conductor)]


def used_up(begun: Iterable[Run], approvals: Sequence[Approval]) -> tuple[str, ...]:
    """Why nothing may be begun by these approvals: a run was, by one of them at least. Who clears its tasks, be it only
    to tidy up, has seen no plan."""
    way = "trigger a new run, and it asks again"
    return tuple(
        f"run {run.id} was begun by this approval and is {run.state}, and an approval is for one run: {way}"
        for run in begun
        if any(_same(one, other) for one in run.approvals for other in approvals)
    )


def _same(one: Approval, other: Approval) -> bool:
    """Whether both are one answer of one person: an older Mirrorbook has written no id of it."""
    ids = one.approval_id is not UNSET and one.approval_id == other.approval_id
    return ids or (one.id, one.name, one.at_ms) == (other.id, other.name, other.at_ms)


def come_back(
    source: str, command: str, *, silent: bool, answers: bool, seen: bool, held: Run | None = None
) -> tuple[str, ...]:
    """The reason not to give a source up by an approval of when it was silent: it answers by now, and was `seen` if it
    told all that was asked. `command` shows the plan anew; `held`: the planned run that this one would take the mirror
    from."""
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
    """The reason not to give up sources that are `answering` now by a hash alone: it is the same while they are silent,
    so whoever approved it may not have known."""
    if not (plan_hash and yes and answering):
        return ()
    return (
        f"{', '.join(answering)} answers, and hash {short_hash(plan_hash)} does not tell whether it did when somebody "
        "approved the plan: read it, and run it without --yes",
    )


def answers_in_part(source: str) -> str:
    """A warning for who is to give up a source that has not told all that was asked for, and that is not silent."""
    return (
        f"{source} answers, if only in part: --mode planned loses nothing, as soon as it tells all. This one gives up "
        f"whatever {source} has acknowledged and is not copied yet"
    )


def other_plan(plan: Plan, plan_hash: str | None) -> tuple[str, ...]:
    """The reason not to run this plan when another one was approved; None: whichever it is."""
    if plan_hash in (None, plan.hash):
        return ()
    current = short_hash(plan.hash)
    return (
        f"plan {short_hash(plan_hash)} is out of date, the current one is {current}: review it",
        *whole_hash_needed(plan_hash, plan.hash),
    )


def whole_hash_needed(plan_hash: str, current: str) -> tuple[str, ...]:
    """The remedy when somebody names a plan by the part of its hash that tables show."""
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

"""What is due for each of several mirrors.

Until one is past its point of no return, one that fails takes the others back; then it is left for `resume`. In
parallel order, and in an unplanned failover, the others do not wait for it. A failback's way home is a failover of the
reverse mirrors, by the same rule, due when all old sources are close behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.clock_skew import MAX_CLOCK_SKEW_MS
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.steps import (
    StepNeed,
    WriteLocation,
    list_standstill_steps,
    list_step_names,
    list_steps_before_no_return,
    list_steps_needing,
    list_undisturbed_steps,
)
from mirror_core.decide.write_access import WriteAccess
from mirror_core.model.config_sections import MirrorSet, SetOrder
from mirror_core.model.findings import Finding
from mirror_core.model.names import MirrorName
from mirror_core.model.run import (
    Plan,
    Run,
    RunKind,
    RunMode,
    RunState,
    StepRecord,
    StepState,
    find_last_begun,
    shorten_hash,
)


class RunPhase(StrEnum):
    BEGUN = "begun"
    VERIFIED = "proved"
    """Not affected yet; everything is done that can be done before they are stopped."""
    APPLICATIONS_STOPPED = "applications stopped"
    READY = "ready"
    PAST_NO_RETURN = "promoted, not done"
    """Promotion may have given rights: no abort."""
    DONE = "done"
    ABORTING = "being given up"
    GIVEN_UP = "given up"
    OLD_SOURCE_CHANGED = "old source being changed"
    """A failback: no abort. Applications stay where they are."""
    HOME_DUE = "waits for the failover home"
    HOME = "home, not mirrored yet"
    OLD_SOURCE_UNREAD = "its old source was not read"
    """So whether applications are home is not known."""
    DESTINATION_UNREAD = "its destination was not read"
    """For display: the schedule goes by what was last seen."""


class NextAction(StrEnum):
    VERIFY = "prove"
    MAKE_READY = "make ready"
    FINISH = "finish"
    ABORT = "abort"
    WAIT = "wait"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class SetMember:
    mirror: MirrorName
    phase: RunPhase
    has_failed: bool = False


PAST_NO_RETURN_PHASES: Final = frozenset(
    {
        RunPhase.PAST_NO_RETURN,
        RunPhase.OLD_SOURCE_CHANGED,
        RunPhase.HOME_DUE,
        RunPhase.HOME,
        RunPhase.OLD_SOURCE_UNREAD,
        RunPhase.DONE,
    }
)
UNDISTURBED_PHASES: Final = frozenset({RunPhase.BEGUN, RunPhase.VERIFIED})
_FINAL_PHASES: Final = frozenset({RunPhase.DONE, RunPhase.GIVEN_UP})
_PARALLEL_ACTIONS: Final[Mapping[RunPhase, NextAction]] = MappingProxyType(
    {
        RunPhase.BEGUN: NextAction.VERIFY,
        RunPhase.VERIFIED: NextAction.MAKE_READY,
        RunPhase.APPLICATIONS_STOPPED: NextAction.MAKE_READY,
        RunPhase.READY: NextAction.FINISH,
    }
)
"""Due for a single mirror before any is promoted. The earliest action of any member is due first."""
_ACTION_ORDER: Final = (NextAction.VERIFY, NextAction.MAKE_READY, NextAction.FINISH)


def decide_actions(
    members: Sequence[SetMember], order: SetOrder, mode: RunMode = RunMode.PLANNED
) -> tuple[NextAction, ...]:
    if mode is RunMode.UNPLANNED:
        return _decide_independent(members, order)
    is_past_no_return = any(member.phase in PAST_NO_RETURN_PHASES for member in members)
    if not is_past_no_return and any(
        member.has_failed or member.phase in (RunPhase.ABORTING, RunPhase.GIVEN_UP) for member in members
    ):
        return tuple(
            NextAction.NOTHING if member.phase is RunPhase.GIVEN_UP else NextAction.ABORT for member in members
        )
    if order is SetOrder.IN_ORDER:
        return _decide_in_order(members, is_past_no_return)
    if is_past_no_return:
        return tuple(
            NextAction.NOTHING
            if member.has_failed or member.phase in _FINAL_PHASES
            else NextAction.WAIT
            if member.phase is RunPhase.HOME_DUE
            else NextAction.FINISH
            for member in members
        )
    actions = [_PARALLEL_ACTIONS[member.phase] for member in members]
    earliest_action = min(actions, key=_ACTION_ORDER.index)
    return tuple(action if action is earliest_action else NextAction.WAIT for action in actions)


def _decide_independent(members: Sequence[SetMember], order: SetOrder) -> tuple[NextAction, ...]:
    actions = list[NextAction]()
    for member in members:
        if member.has_failed or member.phase in _FINAL_PHASES:
            actions.append(NextAction.NOTHING)
        else:
            actions.append(
                NextAction.WAIT if order is SetOrder.IN_ORDER and NextAction.FINISH in actions else NextAction.FINISH
            )
    return tuple(actions)


def _decide_in_order(members: Sequence[SetMember], is_past_no_return: bool) -> tuple[NextAction, ...]:
    """Verifies all before the first is stopped. Behind a failed one the others wait, still writable."""
    actions = list[NextAction]()
    is_verifying = not is_past_no_return and any(member.phase is RunPhase.BEGUN for member in members)
    is_waiting = False
    for member in members:
        if member.phase in _FINAL_PHASES:
            actions.append(NextAction.NOTHING)
        elif is_waiting or (is_verifying and member.phase is not RunPhase.BEGUN):
            actions.append(NextAction.WAIT)
        else:
            is_waiting = True
            actions.append(
                NextAction.NOTHING if member.has_failed else NextAction.VERIFY if is_verifying else NextAction.FINISH
            )
    return tuple(actions)


def is_undisturbed(kind: RunKind, phase: RunPhase) -> bool:
    """A failback disturbs nobody before its point of no return."""
    return phase in UNDISTURBED_PHASES or (kind is RunKind.FAILBACK and phase is RunPhase.READY)


def find_run_phase(
    run: Run, steps: Iterable[StepRecord], *, is_past_no_return: bool, is_home: bool | None = False
) -> RunPhase:
    """`is_home`: a failback's failover home is done."""
    if run.state is not RunState.RUNNING:
        return {RunState.DONE: RunPhase.DONE, RunState.ABORTING: RunPhase.ABORTING}.get(run.state, RunPhase.GIVEN_UP)
    kind, mode = run.plan.kind, run.plan.mode
    begun_steps = {step.step for step in steps}
    done_steps = {step.step for step in steps if step.state is StepState.DONE}
    if is_past_no_return and kind is RunKind.FAILBACK:
        steps_before_home = set(list_step_names(kind)) - set(list_steps_needing(kind, StepNeed.REVERSE_FAILOVER))
        if is_home is not False:
            return RunPhase.HOME if is_home else RunPhase.OLD_SOURCE_UNREAD
        return RunPhase.HOME_DUE if done_steps >= steps_before_home else RunPhase.OLD_SOURCE_CHANGED
    if is_past_no_return:
        return RunPhase.PAST_NO_RETURN
    if done_steps.issuperset(list_steps_before_no_return(kind, mode)):
        return RunPhase.READY
    if begun_steps.intersection(list_standstill_steps(kind, mode)[:1]):
        return RunPhase.APPLICATIONS_STOPPED
    return RunPhase.VERIFIED if done_steps.issuperset(list_undisturbed_steps(kind, mode)) else RunPhase.BEGUN


def parse_set_name(part_of: str) -> str:
    return part_of.rpartition("-")[0].rpartition("-")[0]


def select_mirrors_from(
    set_name: str,
    accesses: Mapping[MirrorName, WriteAccess | None],
    runs: Iterable[Run],
    kind: RunKind = RunKind.FAILOVER,
) -> tuple[MirrorName, ...]:
    """Mirrors of one cluster whose applications are not where this leads, and those of the set's open run.

    If there are none: those of its last run, to show what became of it.
    """
    goal = WriteLocation.SOURCE if kind is RunKind.FAILBACK else WriteLocation.DESTINATION
    to_move = {mirror for mirror, access in accesses.items() if access is None or access.writes is not goal}
    set_runs = [run for run in runs if run.plan.kind is kind and parse_set_name(run.set_run) == set_name]
    newest = find_last_begun(set_runs)
    newest_runs = [run for run in set_runs if newest is not None and run.set_run == newest.set_run]
    if not to_move or any(run.ended_ms is None for run in newest_runs):
        to_move |= {run.plan.mirror for run in newest_runs} & accesses.keys()
    return tuple(sorted(to_move))


def find_next_mirror(mirror: MirrorName, mirror_set: MirrorSet) -> MirrorName | None:
    position = mirror_set.mirrors.index(mirror) + 1 if mirror in mirror_set.mirrors else len(mirror_set.mirrors)
    return (
        mirror_set.mirrors[position]
        if mirror_set.order is SetOrder.IN_ORDER and position < len(mirror_set.mirrors)
        else None
    )


_CLUSTERS_OF_MIRROR: Final = 2


def measure_set_standstill_s(runs: Iterable[tuple[Run, Iterable[StepRecord]]]) -> float | None:
    """None where not all are promoted, or the clocks of their destinations differ."""
    starts, promotions, plans = list[int](), list[int | None](), list[Plan]()
    for run, steps in runs:
        plans.append(run.plan)
        standstill_steps, records = (
            list_standstill_steps(RunKind.FAILOVER, run.plan.mode),
            {step.step: step for step in steps},
        )
        if standstill_steps[0] in records:
            starts.append(records[standstill_steps[0]].started_ms)
            promotions.append(records[standstill_steps[-1]].ended_ms if standstill_steps[-1] in records else None)
    ends = [ended_ms for ended_ms in promotions if ended_ms is not None]
    if not ends or len(ends) < len(promotions) or (len(plans) > 1 and _find_clock_spread_ms(plans) > MAX_CLOCK_SKEW_MS):
        return None
    return (max(ends) - min(starts)) / 1000


def _find_clock_spread_ms(plans: Iterable[Plan]) -> float:
    """A clock without a warning counts as the planning machine's."""
    aheads_s = list[float]()
    for plan in plans:
        warned = [finding.values["ahead_s"] for finding in plan.warnings if finding.code == "clock_differs"]
        aheads_s += [float(ahead_s) for ahead_s in warned if isinstance(ahead_s, int | float)]
        aheads_s += [0.0] * (len(warned) < _CLUSTERS_OF_MIRROR)
    return (max(aheads_s) - min(aheads_s)) * 1000


@dataclass(frozen=True, slots=True)
class SetPlan:
    decisions: Mapping[MirrorName, PlanDecision]
    hash: str
    reasons: tuple[str | Finding, ...]
    silent: tuple[MirrorName, ...] = ()
    """Their sources do not answer and are given up."""

    def find_hash_mismatch(self, plan_hash: str | None) -> tuple[str, ...]:
        if plan_hash in (None, self.hash):
            return ()
        changed = f"they have changed since: their hash is {shorten_hash(self.hash)} now"
        return (f"the plans that were approved had hash {shorten_hash(plan_hash)}; {changed}. Look at the new plans",)


def compute_set_hash(mirror_set: MirrorSet, plans: Iterable[Plan]) -> str:
    """SHA-256 in hexadecimal over all plans and the order: what an approval of the set is bound to."""
    lines = [mirror_set.name, mirror_set.order, *(f"{plan.mirror} {plan.hash}" for plan in plans)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

"""Several mirrors in one failover: what is due for each, whatever became of the others.

Until one is promoted, all move or all stay: one that fails takes the others back. After the first promotion nothing is
taken back: one that fails is left for `resume`, and in parallel order the others do not wait for it. Nor do they in an
unplanned failover: there is nothing to go back to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.clock_skew import MAX_CLOCK_SKEW_MS
from mirror_core.decide.steps import (
    WriteLocation,
    find_no_return_step,
    list_standstill_steps,
    list_step_names,
    list_undisturbed_steps,
)
from mirror_core.decide.write_access import WriteAccess
from mirror_core.model.config_sections import MirrorSet, SetOrder
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


PAST_NO_RETURN_PHASES: Final = frozenset({RunPhase.PAST_NO_RETURN, RunPhase.DONE})
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
            NextAction.NOTHING if member.has_failed or member.phase in _FINAL_PHASES else NextAction.FINISH
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
    """All are verified before the first is stopped. Behind a failed one the others wait, still writable."""
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


def is_undisturbed(members: Iterable[SetMember]) -> bool:
    return all(member.phase in UNDISTURBED_PHASES for member in members)


def find_run_phase(run: Run, steps: Iterable[StepRecord], *, is_past_no_return: bool) -> RunPhase:
    if run.state is not RunState.RUNNING:
        return {RunState.DONE: RunPhase.DONE, RunState.ABORTING: RunPhase.ABORTING}.get(run.state, RunPhase.GIVEN_UP)
    kind, mode = RunKind.FAILOVER, run.plan.mode
    step_states = {step.step: step.state for step in steps}
    no_return_step = find_no_return_step(kind, mode)
    steps_before = list_step_names(kind, mode)[: list_step_names(kind, mode).index(no_return_step)]
    if is_past_no_return:
        return RunPhase.PAST_NO_RETURN
    if all(step_states.get(step) is StepState.DONE for step in steps_before):
        return RunPhase.READY
    if list_standstill_steps(kind, mode)[0] in step_states:
        return RunPhase.APPLICATIONS_STOPPED
    is_verified = all(step_states.get(step) is StepState.DONE for step in list_undisturbed_steps(kind, mode))
    return RunPhase.VERIFIED if is_verified else RunPhase.BEGUN


def parse_set_name(part_of: str) -> str:
    return part_of.rpartition("-")[0].rpartition("-")[0]


def select_mirrors_from(
    set_name: str, accesses: Mapping[MirrorName, WriteAccess | None], runs: Iterable[Run]
) -> tuple[MirrorName, ...]:
    """Select of one cluster's mirrors those that have not failed over, and those of the set's failover that goes on.

    When all have failed over: those of its last failover, which may be asked what became of it.
    """
    to_move = {
        mirror
        for mirror, access in accesses.items()
        if access is None or access.writes is not WriteLocation.DESTINATION
    }
    set_runs = [run for run in runs if parse_set_name(run.set_run) == set_name]
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
    """How far apart the clocks of the clusters were. One that no plan warns of was that of the planning machine."""
    aheads_s = list[float]()
    for plan in plans:
        warned = [finding.values["ahead_s"] for finding in plan.warnings if finding.code == "clock_differs"]
        aheads_s += [float(ahead_s) for ahead_s in warned if isinstance(ahead_s, int | float)]
        aheads_s += [0.0] * (len(warned) < _CLUSTERS_OF_MIRROR)
    return (max(aheads_s) - min(aheads_s)) * 1000


def compute_set_hash(mirror_set: MirrorSet, plans: Iterable[Plan]) -> str:
    """SHA-256 in hexadecimal over all plans and the order: what an approval of the set is bound to."""
    lines = [mirror_set.name, mirror_set.order, *(f"{plan.mirror} {plan.hash}" for plan in plans)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

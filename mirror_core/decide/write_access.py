"""Where applications can write now, and what an operator has to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.fence_state import FenceState, find_fence_state, has_failed_over
from mirror_core.decide.process_liveness import ConductorState
from mirror_core.decide.run_status import (
    OpenRunFence,
    RunSituation,
    can_go_on_unplanned,
    can_have_reverse_failover,
    find_open_run_fence,
    find_run_progress,
)
from mirror_core.decide.steps import RunVerb, WriteLocation, list_run_verbs
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import Run, RunKind, RunState, StepState


class OperatorAction(StrEnum):
    NOTHING = "nothing"
    WAIT = "wait"
    RESUME_RUN = "resume the run"
    LEAVE_BEHIND = "resume the run and leave records behind"
    ABORT_RUN = "abort the run"
    PLAN_UNPLANNED_FAILOVER = "plan an unplanned failover"
    START = "start the mirror"
    RESUME_MIRROR = "resume the mirror"
    SUPERVISE = "run the data plane"
    WATCH = "watch the old source"
    LIFT_FENCE = "lift the fence of an aborted failover"
    KEEP_WATCHER = "keep the watcher running"
    RECOVER = "recover FAILED partitions"
    PLAN_FAILBACK = "plan a failback"
    SHOW_FAILBACK = "show the failback that this mirror is for"
    SHOW_HOME_MIRROR = "show the mirror that this one led home"
    SHOW_WAY_HOME = "show the mirror that leads home"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """The run that holds the mirror."""

    id: str
    kind: RunKind
    step: str
    """Begun last. Empty: before its first step."""
    step_state: StepState | None
    """Null: before its first step."""
    conductor: ConductorState
    may_await_answer: bool
    fence: OpenRunFence | None
    """Null: it lets applications write somewhere, or may have begun to."""
    is_aborting: bool
    can_abort: bool
    can_go_on_unplanned: bool = False
    """Its source does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAccess:
    """Where applications can write, and what to do."""

    writes: WriteLocation | None
    """Where applications may write. Null: not recorded, or they are on their way."""
    cluster: ClusterName | None
    """Null: nowhere, or not known."""
    action: OperatorAction
    run: OpenRun | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSituation:
    mirror: Mirror
    newest_run: RunSituation | None
    """The open one, if there is one."""
    pending_fence: PendingFence | None
    is_source_silent: bool
    is_copying: bool
    has_failed: bool = False
    """A partition is FAILED."""
    is_watched: bool = False
    """A watcher of the old source is alive, for example one that `supervise` runs."""
    is_fence_seen: bool | None = None
    """Brokers of the source show the fence of an aborted failover. None: not asked, or no answer."""
    home: WriteAccess | None = None
    """During a failback: what the reverse mirror's failover says."""


def decide_write_access(situation: AccessSituation) -> WriteAccess:
    mirror, newest = situation.mirror, situation.newest_run
    if newest is not None and newest.run.ended_ms is None:
        access = _decide_open_run(newest, situation.home)
        goes_on = situation.is_source_silent and can_go_on_unplanned(newest)
        return replace(access, run=replace(access.run, can_go_on_unplanned=True)) if access.run and goes_on else access
    if has_moved_applications(mirror, situation.pending_fence, newest.run if newest else None):
        return WriteAccess(
            writes=WriteLocation.DESTINATION,
            cluster=mirror.destination,
            action=_decide_after_failover(situation),
            run=None,
        )
    if is_place_unrecorded(mirror, situation.pending_fence, newest.run if newest else None):
        return WriteAccess(writes=None, cluster=None, action=OperatorAction.START, run=None)
    if find_fence_state(situation.pending_fence) is FenceState.LIFTING and situation.is_fence_seen is not False:
        action = OperatorAction.LIFT_FENCE if situation.is_fence_seen else _decide_watching(situation)
        return WriteAccess(writes=WriteLocation.NOWHERE, cluster=None, action=action, run=None)
    return WriteAccess(
        writes=WriteLocation.SOURCE, cluster=mirror.source, action=_decide_while_mirroring(situation), run=None
    )


def drop_past_location(access: WriteAccess) -> WriteAccess:
    """A mirror that led applications home tells no place: its home mirror may have been failed over since."""
    is_past = access.action is OperatorAction.SHOW_HOME_MIRROR
    return replace(access, writes=None, cluster=None) if is_past else access


_REVERSED_LOCATIONS: Final = MappingProxyType(
    {
        WriteLocation.SOURCE: WriteLocation.DESTINATION,
        WriteLocation.DESTINATION: WriteLocation.SOURCE,
        WriteLocation.NOWHERE: WriteLocation.NOWHERE,
    }
)
"""A failover home runs on the reverse mirror."""


def has_moved_applications(mirror: Mirror, pending_fence: PendingFence | None, newest_run: Run | None) -> bool:
    return has_failed_over(pending_fence) or (
        mirror.desired is DesiredState.STOPPED
        and newest_run is not None
        and newest_run.plan.kind is RunKind.FAILOVER
        and newest_run.state is RunState.DONE
    )


def is_place_unrecorded(mirror: Mirror, pending_fence: PendingFence | None, newest_run: Run | None) -> bool:
    """The mirror has moved no applications: whether its source has them is not known."""
    if mirror.desired is not DesiredState.STOPPED:
        return False
    is_at_source = newest_run is None or (newest_run.plan.kind is RunKind.FAILBACK) == (
        newest_run.state is RunState.DONE
    )
    is_lifting = find_fence_state(pending_fence) is FenceState.LIFTING
    return bool(mirror.failback_run) or is_lifting or not is_at_source


def _decide_after_failover(situation: AccessSituation) -> OperatorAction:
    if situation.mirror.failback_run:
        return OperatorAction.SHOW_HOME_MIRROR
    if find_fence_state(situation.pending_fence) is FenceState.PENDING:
        return _decide_watching(situation)
    return OperatorAction.PLAN_FAILBACK


def _decide_watching(situation: AccessSituation) -> OperatorAction:
    return OperatorAction.KEEP_WATCHER if situation.is_watched else OperatorAction.WATCH


def _decide_while_mirroring(situation: AccessSituation) -> OperatorAction:
    if situation.mirror.desired is DesiredState.STOPPED:
        return OperatorAction.START
    if situation.is_source_silent:
        return OperatorAction.PLAN_UNPLANNED_FAILOVER
    if situation.mirror.desired is DesiredState.PAUSED:
        return OperatorAction.RESUME_MIRROR
    if situation.mirror.failback_run:
        return OperatorAction.SHOW_FAILBACK
    if not situation.is_copying:
        return OperatorAction.SUPERVISE
    return OperatorAction.RECOVER if situation.has_failed else OperatorAction.NOTHING


def _decide_open_run(situation: RunSituation, home: WriteAccess | None) -> WriteAccess:
    mirror, writes = situation.mirror, find_run_progress(situation.run, situation.steps).writes
    is_nowhere = writes is WriteLocation.NOWHERE and not situation.is_past_no_return
    fence = find_open_run_fence(situation) if is_nowhere else None
    open_run = _find_open_run(situation, fence)
    if fence is OpenRunFence.LIFTED:
        return WriteAccess(
            writes=WriteLocation.SOURCE, cluster=mirror.source, action=_decide_run_action(situation), run=open_run
        )
    if can_have_reverse_failover(situation.run, situation.steps):
        on_way = None if home is None or home.writes is None else _REVERSED_LOCATIONS[home.writes]
        cluster = None if home is None else home.cluster
        is_stuck = home is not None and home.action is OperatorAction.ABORT_RUN
        action = OperatorAction.SHOW_WAY_HOME if is_stuck else _decide_run_action(situation)
        return WriteAccess(writes=on_way, cluster=cluster, action=action, run=open_run)
    is_half_given = writes is WriteLocation.NOWHERE and not is_nowhere
    if is_half_given:
        return WriteAccess(writes=None, cluster=None, action=_decide_run_action(situation), run=open_run)
    cluster = {WriteLocation.SOURCE: mirror.source, WriteLocation.DESTINATION: mirror.destination}.get(writes)
    return WriteAccess(writes=writes, cluster=cluster, action=_decide_run_action(situation), run=open_run)


def _find_open_run(situation: RunSituation, fence: OpenRunFence | None) -> OpenRun:
    run = situation.run
    is_aborting = run.state is RunState.ABORTING
    progress = find_run_progress(run, situation.steps)
    return OpenRun(
        id=run.id,
        kind=run.plan.kind,
        step=progress.step,
        step_state=progress.step_state,
        conductor=situation.conductor.state,
        may_await_answer=situation.conductor.may_await_answer,
        fence=fence,
        is_aborting=is_aborting,
        can_abort=RunVerb.ABORT in list_run_verbs(run, is_past_no_return=situation.is_past_no_return),
    )


def _decide_run_action(situation: RunSituation) -> OperatorAction:
    if situation.conductor.state is ConductorState.ALIVE:
        return OperatorAction.WAIT
    if situation.run.state is RunState.ABORTING:
        return OperatorAction.RESUME_RUN
    if situation.lifted_denials or situation.failed_since_plan:
        return OperatorAction.ABORT_RUN
    return OperatorAction.LEAVE_BEHIND if situation.source_returned else OperatorAction.RESUME_RUN

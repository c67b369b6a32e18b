"""The pending fence of the cluster that applications left by a failover, and what to do about it now.

The state topic records what is pending; the cluster, when it answers, shows what it has. The deciding process may have
been paused: so it decides before it takes control of the mirror, and again afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from mirror_core.decide import ruled, steps
from mirror_core.decide.slipped import LateRanges, count_offsets, format_late_ranges, format_ranges
from mirror_core.decide.view import UnseenCluster, join_limited
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import MirrorName, Offset, Partition, is_reverse_mirror
from mirror_core.model.offsets import NO_OFFSETS, PartitionOffsets
from mirror_core.model.ruling import AuthorizerKind, WriteBarrier
from mirror_core.model.run import Run, RunKind, RunMode, RunState
from mirror_core.model.sighting import SourceObservation
from mirror_core.model.standing import FenceAction, PendingFence


class FenceState(StrEnum):
    NONE = "nothing"
    PENDING = "pending"
    APPLIED = "stands"
    """Every broker was seen to have it."""
    WATCHED_ONLY = "watched"
    """Nothing of ours can fence the cluster: only its writes are watched."""
    LIFTING = "lifting"


class FenceNextAction(StrEnum):
    NOTHING = "nothing"
    APPLY = "fence"
    LIFT = "unfence"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceObservation:
    barred: WriteBarrier
    authorizer: AuthorizerKind = AuthorizerKind.KAFKA
    unfenced_brokers: tuple[str, ...] = ()
    log_ends: Mapping[Partition, Offset] = field(default_factory=dict)
    written_ranges: LateRanges = field(default_factory=dict)
    """Application records beyond the recorded ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceDecision:
    state: FenceState
    action: FenceNextAction = FenceNextAction.NOTHING
    pending_fence: PendingFence | None = None
    lines: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    one_time_alarms: tuple[str, ...] = ()
    """Alarms that no later check would find: recorded as reported by `mark_reported`."""
    late_ranges: LateRanges = field(default_factory=dict)
    written_ranges: LateRanges = field(default_factory=dict)
    is_silent: bool = False
    is_held_by_run: bool = False
    is_exposed: bool = False


def has_failed_over(pending_fence: PendingFence | None) -> bool:
    """Whether a failover moved applications away. Each one leaves this record, even if the source cannot
    be fenced; only a failback removes it.
    """
    return pending_fence is not None and pending_fence.action is FenceAction.APPLY


def find_fence_state(pending_fence: PendingFence | None) -> FenceState:
    if pending_fence is None:
        return FenceState.NONE
    if pending_fence.action is FenceAction.LIFT:
        return FenceState.LIFTING
    if pending_fence.applied_at_ms is not None:
        return FenceState.APPLIED
    return FenceState.WATCHED_ONLY if pending_fence.log_ends != NO_OFFSETS else FenceState.PENDING


def must_fence_during_run(pending_fence: PendingFence | None, run: Run, *, is_past_no_return: bool) -> bool:
    """Whether the fence is kept while this run holds the mirror.

    Yes for a failover past its point of no return (`turned`), and for a failback until it lets the mirror write there,
    which first removes the pending fence.
    """
    return has_failed_over(pending_fence) and (run.plan.kind is RunKind.FAILBACK or is_past_no_return)


def is_promoting(
    pending_fence: PendingFence, run: Run, begun_steps: Container[tuple[str, str]], *, is_stalled: bool
) -> bool:
    """Whether it is an unplanned failover with a pending fence that has begun to promote or is stalled
    before.

    It may still be aborted if it has given nothing. `begun`: (run id, step) pairs.
    """
    is_unplanned = run.plan.mode is RunMode.UNPLANNED and run.state is RunState.RUNNING
    return (
        has_failed_over(pending_fence)
        and pending_fence.run == run.id
        and is_unplanned
        and (is_stalled or steps.is_past_no_return(run, begun_steps))
    )


def is_waiting_for_failback(mirror: MirrorName, pending_fence: PendingFence | None) -> bool:
    """Whether a watcher skips a mirror during the failback that it belongs to.

    Not where a fence is pending: the new primary was given up, and its failback never fences it. Nor where one must be
    lifted: applications are still there.
    """
    return is_reverse_mirror(mirror) and find_fence_state(pending_fence) not in (FenceState.PENDING, FenceState.LIFTING)


def explain_nothing_to_watch(mirror: Mirror | None, pending_fence: PendingFence | None) -> str | None:
    """None: somebody must watch, after a failover until a failback has lifted the fence."""
    if mirror is None:
        return "the mirror was deleted"
    return "the mirror is stopped" if mirror.desired is DesiredState.STOPPED and pending_fence is None else None


def decide_fence(
    pending_fence: PendingFence | None,
    run: Run | None,
    observation: FenceObservation | UnseenCluster,
    *,
    during_run: bool = False,
) -> FenceDecision:
    """Decides about a pending fence. Nothing while a run holds the mirror: the run does it, or will undo
    it.

    `beside`: the fence is kept during this run; its conductor may be active, so nothing is recorded. A run of the
    reverse mirror is part of this mirror's failback, which holds it all the time.
    """
    state = find_fence_state(pending_fence)
    if pending_fence is None:
        return FenceDecision(state=state, lines=("no fence is pending on any cluster",), is_held_by_run=run is not None)
    if run is None:
        return _decide_with_unreported(pending_fence, state, observation)
    if not during_run:
        line = (
            f"{run.plan.kind} {run.id} holds the mirror: nothing is done to cluster {pending_fence.cluster} meanwhile"
        )
        return FenceDecision(state=state, lines=(line,), is_held_by_run=True)
    without_unreported = replace(
        pending_fence, unreported=()
    )  # nobody could note that they were told: told after the run, if they still count
    decision = replace(
        _decide_with_unreported(without_unreported, state, observation),
        action=FenceNextAction.NOTHING,
        pending_fence=None,
        one_time_alarms=(),
        is_held_by_run=True,
    )
    if isinstance(observation, UnseenCluster) or state is not FenceState.PENDING:
        return decision
    return replace(decision, alarms=(*warn_pending_fence(pending_fence, (run.id,)), *decision.alarms), is_exposed=True)


def warn_pending_fence(pending_fence: PendingFence | None, active_runs: Collection[str]) -> Iterator[str]:
    if pending_fence is None or find_fence_state(pending_fence) is not FenceState.PENDING:
        return
    subject = f"cluster {pending_fence.cluster} answers, and its fence is pending"
    if pending_fence.run in active_runs:
        yield (
            f"{subject}, since failover {pending_fence.run} has not ended: `mirrorbook failover resume {pending_fence.mirror}` goes on with "
            "it. Until then only watchers keep writers out there"
        )
    else:
        yield f"{subject}: `mirrorbook mirror watch {pending_fence.mirror}` puts it up"


def decide_source_returned(
    pending_fence: PendingFence, run: Run, late_ranges: LateRanges, observation: SourceObservation | None
) -> FenceDecision:
    """The source answers before an unplanned failover promotes. `taken`: beyond the last mirrored offsets.

    Nothing is done: the run may be aborted, and then the source accepts writes as before.
    """
    state = find_fence_state(pending_fence)
    alarm = (
        f"cluster {pending_fence.cluster} answers, and failover {run.id} has not promoted yet; what was not copied: "
        f"{format_late_ranges(late_ranges, observation)}. `mirrorbook failover abort {pending_fence.mirror}` loses nothing; `mirrorbook failover "
        f"resume {pending_fence.mirror}` says what it would leave behind"
    )
    return FenceDecision(
        state=state,
        lines=tuple(format_fence_state(pending_fence)),
        alarms=(alarm,) if late_ranges else (),
        is_held_by_run=True,
        is_exposed=state is FenceState.PENDING,
    )


def add_unreported(pending_fence: PendingFence, alarms: Iterable[str]) -> PendingFence:
    """Adds alarms that no later check would find.

    Written before or with what hides them: a process that dies before people are told leaves them to the next check.
    """
    return replace(pending_fence, unreported=tuple(dict.fromkeys((*pending_fence.unreported, *alarms))))


def mark_reported(pending_fence: PendingFence, alarms: Collection[str]) -> PendingFence:
    return replace(pending_fence, unreported=tuple(alarm for alarm in pending_fence.unreported if alarm not in alarms))


def _decide_with_unreported(
    pending_fence: PendingFence, state: FenceState, observation: FenceObservation | UnseenCluster
) -> FenceDecision:
    decision = _decide_by_observation(pending_fence, state, observation)
    return replace(
        decision,
        alarms=(*pending_fence.unreported, *decision.alarms),
        one_time_alarms=(*pending_fence.unreported, *decision.one_time_alarms),
    )


def _decide_by_observation(
    pending_fence: PendingFence, state: FenceState, observation: FenceObservation | UnseenCluster
) -> FenceDecision:
    if isinstance(observation, UnseenCluster):
        is_waiting = pending_fence.applied_at_ms is None
        return FenceDecision(
            state=state,
            lines=(*format_fence_state(pending_fence), f"no answer: {observation.reason}"),
            is_silent=is_waiting,
        )
    if pending_fence.action is FenceAction.LIFT:
        return FenceDecision(state=state, action=FenceNextAction.LIFT, lines=tuple(format_fence_state(pending_fence)))
    if observation.barred is WriteBarrier.NONE:
        return _decide_watched_only(pending_fence, observation)
    if pending_fence.applied_at_ms is None:
        return FenceDecision(state=state, action=FenceNextAction.APPLY, lines=tuple(format_fence_state(pending_fence)))
    return _decide_applied(pending_fence, observation)


def mark_applied(
    pending_fence: PendingFence, seen_ends: Mapping[Partition, Offset], now_ms: int, *, by_command: bool = False
) -> PendingFence:
    """Every broker shows the fence. Ends that were recorded before stay.

    `by_command`: the command succeeded and the logs stand still. Records written after an earlier call are late writes
    too: only these ends tell when it was closed again.
    """
    recorded_ends = pending_fence.log_ends.to_mapping()
    ends = {**recorded_ends, **seen_ends} if by_command else {**seen_ends, **recorded_ends}
    return replace(
        pending_fence,
        applied_at_ms=pending_fence.applied_at_ms or now_ms,
        log_ends=PartitionOffsets.from_mapping(ends),
        by_command=by_command,
        problem="",
    )


def format_fence_state(pending_fence: PendingFence | None) -> Iterator[str]:
    if pending_fence is None:
        return
    match find_fence_state(pending_fence):
        case FenceState.LIFTING:
            yield f"{pending_fence.cluster}: run {pending_fence.run} was aborted, and its fence waits to be removed since {_format_since(pending_fence)}"
        case FenceState.PENDING:
            yield f"{pending_fence.cluster}: fence pending since {_format_since(pending_fence)}; until it is in place, this cluster accepts writes"
        case FenceState.WATCHED_ONLY:
            yield f"{pending_fence.cluster}: cannot be fenced; it is only watched since {_format_since(pending_fence)}"
        case FenceState.APPLIED:
            how_text = ", closed by its fence_command, which no broker can show" if pending_fence.by_command else ""
            yield f"{pending_fence.cluster}: its fence stands since {format_time(pending_fence.applied_at_ms or 0)}{how_text}"
    if pending_fence.problem:
        yield pending_fence.problem


def format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _format_since(pending_fence: PendingFence) -> str:
    return format_time(pending_fence.since_ms)


def _decide_watched_only(pending_fence: PendingFence, observation: FenceObservation) -> FenceDecision:
    trouble = f"cluster {pending_fence.cluster} {ruled.explain_watched_only(observation.authorizer)}{_format_writers(observation)}"
    decision = _decide_recorded(
        replace(_add_log_ends(pending_fence, observation), applied_at_ms=None, by_command=False, problem=trouble),
        pending_fence,
        observation,
    )
    if observation.authorizer is not AuthorizerKind.FOREIGN:
        return decision
    return replace(
        decision, alarms=(ruled.format_fence_request(pending_fence.cluster), *decision.alarms), is_exposed=True
    )


def _decide_applied(pending_fence: PendingFence, observation: FenceObservation) -> FenceDecision:
    if observation.unfenced_brokers:
        alarm = f"the fence was taken away and is put up again: {join_limited(observation.unfenced_brokers)}"
        alarms = (alarm, *_list_alarms(pending_fence, observation))
        return FenceDecision(
            state=FenceState.APPLIED,
            action=FenceNextAction.APPLY,
            alarms=alarms,
            one_time_alarms=(alarm,),
            written_ranges=observation.written_ranges,
        )
    if observation.barred is WriteBarrier.COMMAND and (observation.written_ranges or not pending_fence.by_command):
        alarm = f"{pending_fence.cluster}: its fence_command is called again"
        alarms = (alarm, *_list_alarms(pending_fence, observation))
        return FenceDecision(
            state=FenceState.APPLIED,
            action=FenceNextAction.APPLY,
            alarms=alarms,
            one_time_alarms=(alarm,),
            written_ranges=observation.written_ranges,
        )
    return _decide_recorded(
        replace(_add_log_ends(pending_fence, observation), problem=_format_writers(observation).removeprefix("; ")),
        pending_fence,
        observation,
    )


def _decide_recorded(updated: PendingFence, previous: PendingFence, observation: FenceObservation) -> FenceDecision:
    action = FenceNextAction.NOTHING if updated == previous else FenceNextAction.RECORD
    alarms = tuple(_list_alarms(updated, observation))
    return FenceDecision(
        state=find_fence_state(updated),
        action=action,
        pending_fence=updated,
        lines=tuple(format_fence_state(updated)),
        alarms=alarms,
        written_ranges=observation.written_ranges,
    )


def _add_log_ends(pending_fence: PendingFence, observation: FenceObservation) -> PendingFence:
    """Adds ends of partitions that were offline. Their brokers had the fence before they opened."""
    return replace(
        pending_fence,
        log_ends=PartitionOffsets.from_mapping({**observation.log_ends, **pending_fence.log_ends.to_mapping()}),
    )


def _format_writers(observation: FenceObservation) -> str:
    # Without the offsets, which move: what is recorded is written again when it changes.
    return (
        f"; somebody writes there all the same: {join_limited(sorted(observation.written_ranges))}"
        if observation.written_ranges
        else ""
    )


def _list_alarms(pending_fence: PendingFence, observation: FenceObservation) -> Iterator[str]:
    if observation.written_ranges:
        yield (
            f"cluster {pending_fence.cluster} has taken {count_offsets(observation.written_ranges)} offset(s) that no fence stopped: "
            f"{format_ranges(observation.written_ranges)}. Either a super user, or a cluster without a fence: stop that writer"
        )

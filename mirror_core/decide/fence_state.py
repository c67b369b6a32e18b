"""Late writes and the pending fence of a cluster that applications left by a failover.

Other clusters' records decide whether brokers may open to applications before their cluster is fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from mirror_core.decide import steps
from mirror_core.decide.mirror_snapshot import UnseenCluster, join_limited
from mirror_core.model.config_sections import AuthorizerKind, WriteBarrier
from mirror_core.model.findings import Finding, identify_trouble
from mirror_core.model.mirror import DesiredState, Mirror, PartitionStatus
from mirror_core.model.names import (
    NO_OFFSETS,
    ClusterName,
    MirrorName,
    Offset,
    Partition,
    PartitionOffsets,
    get_base_name,
    is_reverse_mirror,
)
from mirror_core.model.pending_fence import (
    NO_LATE_RANGES,
    FenceAction,
    FenceRestoration,
    LateRanges,
    LateSplit,
    PendingFence,
)
from mirror_core.model.run import Run, RunKind, RunMode, RunState
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.text import format_count, format_time


def find_late_ranges(pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]) -> LateRanges:
    """Beyond the last mirrored offsets, up to where the fence was seen to hold.

    Written before the cluster fell silent and never copied, or after it returned and before it was fenced: see
    `LateSplit`.
    """
    ends = pending_fence.log_ends.to_mapping()
    return {
        p: (status.lmo, ends[p])
        for p, status in sorted(statuses.items())
        if status.lmo is not None and ends.get(p, status.lmo) > status.lmo
    }


def find_unknown_ends(
    pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> tuple[Partition, ...]:
    """Behind an applied fence the end is not known yet: offline, no answer of their broker, or their topic is gone."""
    return (
        ()
        if pending_fence.applied_at_ms is None
        else tuple(sorted(statuses.keys() - pending_fence.log_ends.to_mapping().keys()))
    )


def find_new_late_ranges(
    current: PendingFence, previous: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> LateRanges:
    late_ranges = find_late_ranges(current, statuses)
    if previous.applied_at_ms is None:
        return late_ranges
    reported = find_late_ranges(previous, statuses)
    return {
        p: offset_range for p, offset_range in late_ranges.items() if p not in reported and statuses[p].reason is None
    }


def format_ranges(ranges: LateRanges) -> str:
    return join_limited(f"{p} [{start}, {end})" for p, (start, end) in sorted(ranges.items()))


def format_late_ranges(
    ranges: LateRanges, observation: SourceObservation | None, pending_fence: PendingFence | None = None
) -> str:
    """Says, too, how much was lost with the cluster: by `pending_fence`, else as last observed."""
    if pending_fence is not None and not (split := pending_fence.split_late_ranges(ranges)).unknown:
        parted = Finding(
            "late_ranges_parted",
            pending_fence.cluster,
            taken=count_offsets(split.since),
            taken_ranges=format_ranges(split.since),
            lost=count_offsets(split.before),
            lost_ranges=format_ranges(split.before),
        )
        return str(parted)
    observed_ends = {p: observed.end for p, observed in observation.get_ends()} if observation else {}
    old_offsets = sum(max(0, min(end, observed_ends.get(p, start)) - start) for p, (start, end) in ranges.items())
    known_text = f"; at least {old_offsets} of them were there when it was last seen" if old_offsets else ""
    return f"{format_count(count_offsets(ranges), 'offset')}: {format_ranges(ranges)}{known_text}"


def format_late_writes(
    pending_fence: PendingFence | None,
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
) -> str:
    if pending_fence is None:
        return ""
    late_ranges, unknown_partitions = (
        find_late_ranges(pending_fence, statuses),
        find_unknown_ends(pending_fence, statuses),
    )
    text = format_late_ranges(late_ranges, observation, pending_fence) if late_ranges else ""
    unknown_text = f"not known yet of {join_limited(unknown_partitions)}" if unknown_partitions else ""
    return "; ".join(filter(None, (text, unknown_text)))


def count_offsets(ranges: LateRanges) -> int:
    return sum(end - start for start, end in ranges.values())


class FenceState(StrEnum):
    NONE = "none"
    PENDING = "pending"
    APPLIED = "applied"
    """Every broker was seen to have it."""
    WATCHED_ONLY = "watched"
    """Nothing of ours can fence the cluster: only its writes are watched."""
    LIFTING = "lifting"


class FenceNextAction(StrEnum):
    NOTHING = "nothing"
    APPLY = "apply"
    LIFT = "lift"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceObservation:
    barred: WriteBarrier
    authorizer: AuthorizerKind = AuthorizerKind.KAFKA
    unfenced_brokers: tuple[str, ...] = ()
    log_ends: Mapping[Partition, Offset] = field(default_factory=dict)
    written_ranges: LateRanges = field(default_factory=dict)
    """Application records beyond the recorded ends."""
    since_offsets: Mapping[Partition, Offset] = field(default_factory=dict)
    """As in `PendingFence`, of partitions of which it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceDecision:
    state: FenceState
    action: FenceNextAction = FenceNextAction.NOTHING
    pending_fence: PendingFence | None = None
    lines: tuple[str, ...] = ()
    standing_alarms: tuple[Finding, ...] = ()
    """Found by each check until their cause is gone."""
    one_time_alarms: tuple[str, ...] = ()
    """No later check would find them: recorded as reported by `mark_reported`."""
    late_split: LateSplit = NO_LATE_RANGES
    written_ranges: LateRanges = field(default_factory=dict)
    is_silent: bool = False
    is_held_by_run: bool = False
    is_exposed: bool = False

    @property
    def alarms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.one_time_alarms, *map(str, self.standing_alarms))))

    def is_same_trouble(self, other: FenceDecision | None) -> bool:
        """Whether people who were told of the other one need not be told of this one. Offsets may differ."""
        return other is not None and self._list_identities() == other._list_identities()

    def _list_identities(self) -> tuple[object, ...]:
        return self.state, self.lines, self.one_time_alarms, [*map(identify_trouble, self.standing_alarms)]


def has_failed_over(pending_fence: PendingFence | None) -> bool:
    """Each failover leaves this record, even if the source cannot be fenced; only a failback removes it."""
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
    """While this run holds the mirror. A failover keeps the fence past its point of no return; a failback until the
    mirror may write there, when it first removes the pending fence.
    """
    return has_failed_over(pending_fence) and (run.plan.kind is RunKind.FAILBACK or is_past_no_return)


def is_promoting(
    pending_fence: PendingFence, run: Run, begun_steps: Container[tuple[str, str]], *, is_stalled: bool
) -> bool:
    """Whether an unplanned failover with a pending fence has begun to promote or is stalled before.

    `begun_steps`: (run id, step) pairs.
    """
    is_unplanned = run.plan.mode is RunMode.UNPLANNED and run.state is RunState.RUNNING
    return (
        has_failed_over(pending_fence)
        and pending_fence.run == run.id
        and is_unplanned
        and (is_stalled or steps.is_past_no_return(run, begun_steps))
    )


def is_waiting_for_failback(mirror: MirrorName, pending_fence: PendingFence | None) -> bool:
    """Whether a watcher skips a reverse mirror during its failback.

    Not where a fence is pending (the new primary was given up, and its failback never fences it) or must be lifted
    (applications are still there).
    """
    return is_reverse_mirror(mirror) and find_fence_state(pending_fence) not in (FenceState.PENDING, FenceState.LIFTING)


def explain_nothing_to_watch(mirror: Mirror | None, pending_fence: PendingFence | None) -> str | None:
    """Why nobody need watch the mirror's source. None: it must be watched."""
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
    """Nothing while a run holds the mirror: the run does it, or will undo it.

    `during_run`: the fence is kept; its conductor may be active, so nothing is recorded. A run of the reverse mirror
    belongs to this mirror's failback, which holds it all the time.
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
    warnings = warn_pending_fence(pending_fence, (run.id,))
    return replace(decision, standing_alarms=(*warnings, *decision.standing_alarms), is_exposed=True)


def warn_pending_fence(pending_fence: PendingFence | None, active_runs: Collection[str]) -> Iterator[Finding]:
    if pending_fence is None or find_fence_state(pending_fence) is not FenceState.PENDING:
        return
    cluster, mirror, run = pending_fence.cluster, pending_fence.mirror, pending_fence.run
    if run in active_runs:
        yield Finding("fence_awaits_run", cluster, mirror=mirror, run=run)
    else:
        yield Finding("fence_awaits_watcher", cluster, mirror=mirror)


def decide_source_returned(
    pending_fence: PendingFence, run: Run, late_ranges: LateRanges, observation: SourceObservation | None
) -> FenceDecision:
    """The source answers before an unplanned failover promotes. `late_ranges`: beyond the last mirrored offsets.

    Nothing is done: an abort is possible, and then the source accepts writes as before.
    """
    state = find_fence_state(pending_fence)
    alarm = Finding(
        "source_returned_unpromoted",
        pending_fence.cluster,
        mirror=pending_fence.mirror,
        run=run.id,
        listed=format_late_ranges(late_ranges, observation),
    )
    return FenceDecision(
        state=state,
        lines=tuple(map(str, describe_fence(pending_fence))),
        standing_alarms=(alarm,) if late_ranges else (),
        is_held_by_run=True,
        is_exposed=state is FenceState.PENDING,
    )


def add_unreported(pending_fence: PendingFence, alarms: Iterable[str]) -> PendingFence:
    """Written before or with what hides the alarms from later checks: if the process dies before people are told, the
    next check tells them.
    """
    return replace(pending_fence, unreported=tuple(dict.fromkeys((*pending_fence.unreported, *alarms))))


def mark_reported(pending_fence: PendingFence, alarms: Collection[str]) -> PendingFence:
    return replace(pending_fence, unreported=tuple(alarm for alarm in pending_fence.unreported if alarm not in alarms))


def _decide_with_unreported(
    pending_fence: PendingFence, state: FenceState, observation: FenceObservation | UnseenCluster
) -> FenceDecision:
    decision = _decide_by_observation(pending_fence, state, observation)
    return replace(decision, one_time_alarms=(*pending_fence.unreported, *decision.one_time_alarms))


def _decide_by_observation(
    pending_fence: PendingFence, state: FenceState, observation: FenceObservation | UnseenCluster
) -> FenceDecision:
    if isinstance(observation, UnseenCluster):
        is_waiting = pending_fence.applied_at_ms is None
        return FenceDecision(
            state=state,
            lines=(*map(str, describe_fence(pending_fence)), f"no answer: {observation.reason}"),
            is_silent=is_waiting,
        )
    if pending_fence.action is FenceAction.LIFT:
        return FenceDecision(
            state=state, action=FenceNextAction.LIFT, lines=tuple(map(str, describe_fence(pending_fence)))
        )
    if observation.barred is WriteBarrier.NONE:
        return _decide_watched_only(pending_fence, observation)
    if pending_fence.applied_at_ms is None:
        return FenceDecision(
            state=state, action=FenceNextAction.APPLY, lines=tuple(map(str, describe_fence(pending_fence)))
        )
    return _decide_applied(pending_fence, observation)


def mark_applied(
    pending_fence: PendingFence, seen_ends: Mapping[Partition, Offset], now_ms: int, *, by_command: bool = False
) -> PendingFence:
    """Every broker shows the fence.

    Ends that were recorded before stay. `by_command`: the command succeeded and the logs stand still. Records written
    after an earlier call are late writes, too.
    """
    recorded_ends = pending_fence.log_ends.to_mapping()
    ends = {**recorded_ends, **seen_ends} if by_command else {**seen_ends, **recorded_ends}
    return replace(
        pending_fence,
        applied_at_ms=pending_fence.applied_at_ms or now_ms,
        log_ends=PartitionOffsets.from_mapping(ends),
        by_command=by_command,
        trouble=None,
    )


def describe_fence(pending_fence: PendingFence | None, *, is_answering: bool = False) -> Iterator[Finding]:
    if pending_fence is None:
        return
    cluster, since_ms = pending_fence.cluster, pending_fence.since_ms
    match find_fence_state(pending_fence):
        case FenceState.LIFTING:
            yield Finding("fence_lifting", cluster, run=pending_fence.run, since_ms=since_ms)
        case FenceState.PENDING:
            yield Finding("fence_pending", cluster, since_ms=since_ms)
        case FenceState.WATCHED_ONLY:
            yield Finding("fence_impossible", cluster, since_ms=since_ms)
        case FenceState.APPLIED:
            applied_ms, by_command = pending_fence.applied_at_ms, pending_fence.by_command
            yield Finding("fence_applied", cluster, since_ms=applied_ms, by_command=by_command)
            if pending_fence.restored is not None:
                yield explain_restored(cluster, pending_fence.restored)
    if (trouble := pending_fence.find_trouble(is_answering=is_answering)) is not None:
        yield trouble


def explain_restored(cluster: ClusterName, restored: FenceRestoration) -> Finding:
    return Finding(
        "fence_restored",
        cluster,
        at_ms=restored.at_ms,
        by=restored.by,
        lifted_by=restored.lifted_by,
        lifted_ms=restored.lifted_ms,
    )


def _decide_watched_only(pending_fence: PendingFence, observation: FenceObservation) -> FenceDecision:
    trouble = Finding(
        "fence_unavailable",
        pending_fence.cluster,
        authorizer=observation.authorizer,
        partitions=sorted(observation.written_ranges),
    )
    decision = _decide_recorded(
        replace(_add_log_ends(pending_fence, observation), applied_at_ms=None, by_command=False, trouble=trouble),
        pending_fence,
        observation,
    )
    if observation.authorizer is not AuthorizerKind.FOREIGN:
        return decision
    request = Finding("manual_fence_needed", pending_fence.cluster)
    return replace(decision, standing_alarms=(request, *decision.standing_alarms), is_exposed=True)


def _decide_applied(pending_fence: PendingFence, observation: FenceObservation) -> FenceDecision:
    if observation.unfenced_brokers:
        alarm = Finding("fence_taken_away", pending_fence.cluster, listed=join_limited(observation.unfenced_brokers))
        return FenceDecision(
            state=FenceState.APPLIED,
            action=FenceNextAction.APPLY,
            standing_alarms=(alarm, *_list_alarms(pending_fence, observation)),
            one_time_alarms=(str(alarm),),
            written_ranges=observation.written_ranges,
        )
    if observation.barred is WriteBarrier.COMMAND and (observation.written_ranges or not pending_fence.by_command):
        alarm = Finding("fence_command_repeated", pending_fence.cluster)
        return FenceDecision(
            state=FenceState.APPLIED,
            action=FenceNextAction.APPLY,
            standing_alarms=(alarm, *_list_alarms(pending_fence, observation)),
            one_time_alarms=(str(alarm),),
            written_ranges=observation.written_ranges,
        )
    return _decide_recorded(
        replace(_add_log_ends(pending_fence, observation), trouble=_explain_bypass(pending_fence.cluster, observation)),
        pending_fence,
        observation,
    )


def _decide_recorded(updated: PendingFence, previous: PendingFence, observation: FenceObservation) -> FenceDecision:
    action = FenceNextAction.NOTHING if updated == previous else FenceNextAction.RECORD
    return FenceDecision(
        state=find_fence_state(updated),
        action=action,
        pending_fence=updated,
        lines=tuple(map(str, describe_fence(updated))),
        standing_alarms=tuple(_list_alarms(updated, observation)),
        written_ranges=observation.written_ranges,
    )


def _add_log_ends(pending_fence: PendingFence, observation: FenceObservation) -> PendingFence:
    """For partitions that were offline. Their brokers had the fence before they opened."""
    return replace(
        pending_fence.add_since_offsets(observation.since_offsets),
        log_ends=PartitionOffsets.from_mapping({**observation.log_ends, **pending_fence.log_ends.to_mapping()}),
    )


def _explain_bypass(cluster: ClusterName, observation: FenceObservation) -> Finding | None:
    # Without the offsets, which move: what is recorded is written again when it changes.
    written_ranges = observation.written_ranges
    return Finding("fence_bypassed", cluster, partitions=sorted(written_ranges)) if written_ranges else None


def _list_alarms(pending_fence: PendingFence, observation: FenceObservation) -> Iterator[Finding]:
    if observation.written_ranges:
        yield Finding(
            "writes_not_stopped",
            pending_fence.cluster,
            offsets=count_offsets(observation.written_ranges),
            can_fence=find_fence_state(pending_fence) is not FenceState.WATCHED_ONLY,
            listed=format_ranges(observation.written_ranges),
        )


def must_stay_fenced(
    mirror: Mirror | None, pending_fence: PendingFence | None, run: Run | None, *, is_command_begun: bool
) -> bool | None:
    """`run`: holds the mirror; `is_command_begun`: it called the command, or was about to.

    None (unknown): a failback so far on that only its reverse mirror knows; or a mirror deleted or stopped, whose
    source may be another mirror's destination by now.
    """
    if has_failed_over(pending_fence):
        return True
    if pending_fence is None and run is None and (mirror is None or mirror.desired is DesiredState.STOPPED):
        return None
    if run is None or run.state is RunState.ABORTING:
        return False
    return None if run.plan.kind is RunKind.FAILBACK else is_command_begun


class BrokerStartGate(StrEnum):
    OPEN = "open"
    """No failover left it, or every broker was seen with its fence, which brokers keep."""
    BLOCKED = "blocked"
    """A failover left it, and its fence is pending."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BrokerStartDecision:
    gate: BrokerStartGate
    text: str


@dataclass(frozen=True, slots=True)
class RecordedMirrors:
    mirrors: tuple[Mirror, ...]
    pending_fences: Mapping[MirrorName, PendingFence]
    log_start_offset: int = 0
    """First offset of the state topic. Above 0, a pending fence may have been deleted."""
    state_topic_id: str = ""
    """Empty: unknown."""

    def explain_forgotten_fence(self, mirror: Mirror) -> str:
        if self.log_start_offset:
            return f"brokers deleted what its state topic held before offset {self.log_start_offset:,}"
        if not mirror.is_recorded_in(self.state_topic_id):
            return "its state topic is another one than the one in which the mirror was recorded"
        return ""


def decide_broker_start(
    cluster: ClusterName, name: MirrorName, others: Mapping[ClusterName, RecordedMirrors | str]
) -> BrokerStartDecision:
    """About one cluster of a mirror, either end. `others`: all other clusters, or why one is unknown.

    A pending fence outweighs everything. A mirror's record counts on its own destination only.
    """
    mirror_fences = [
        (mirror, recorded.pending_fences.get(mirror.name))
        for other, recorded in sorted(others.items())
        if isinstance(recorded, RecordedMirrors)
        for mirror in recorded.mirrors
        if (mirror.source, mirror.destination, get_base_name(mirror.name)) == (cluster, other, get_base_name(name))
    ]
    for mirror, pending_fence in mirror_fences:
        if pending_fence is not None and has_failed_over(pending_fence) and pending_fence.applied_at_ms is None:
            return BrokerStartDecision(BrokerStartGate.BLOCKED, _format_blocked(mirror, pending_fence))
    if not mirror_fences:
        return BrokerStartDecision(BrokerStartGate.UNKNOWN, " ".join(_format_unknown(cluster, name, others)))
    for mirror, pending_fence in mirror_fences:
        recorded = others[mirror.destination]
        if pending_fence is not None or isinstance(recorded, str):
            continue
        if reason := recorded.explain_forgotten_fence(mirror):
            return BrokerStartDecision(BrokerStartGate.UNKNOWN, _format_forgotten(mirror, reason))
    return BrokerStartDecision(
        BrokerStartGate.OPEN, " ".join(_format_open(mirror, pending_fence) for mirror, pending_fence in mirror_fences)
    )


def _format_blocked(mirror: Mirror, pending_fence: PendingFence) -> str:
    name, source = mirror.name, mirror.source
    head = (
        f"cluster {source} must not open to applications: run {pending_fence.run} moved those of mirror {name} to "
        f"{mirror.destination} at {format_time(pending_fence.since_ms)}, and {source} "
    )
    if find_fence_state(pending_fence) is FenceState.WATCHED_ONLY:
        return f"{head}cannot be fenced by Mirrorbook. Keep applications off its listeners, then start it unchecked"
    return (
        f"{head}is not seen to be fenced. `mirrorbook mirror fence {name} --bootstrap-controller HOST:PORT` prints the "
        "lines that fence it through its controllers, before a broker runs; or keep applications off its listeners. "
        f"Then start it unchecked, and `mirrorbook mirror watch {name} --once` makes this check pass from then on"
    )


def _format_forgotten(mirror: Mirror, reason: str) -> str:
    return (
        f"{mirror.destination} remembers no failover of mirror {mirror.name}, but {reason}: it may have forgotten one."
        f" See `mirrorbook readiness {mirror.name}`."
    )


def _format_open(mirror: Mirror, pending_fence: PendingFence | None) -> str:
    head = f"cluster {mirror.source} may open: {mirror.destination} remembers"
    if pending_fence is None or not has_failed_over(pending_fence):
        return f"{head} no failover of mirror {mirror.name}."
    seen_text = f"each broker of {mirror.source} had its fence at {format_time(pending_fence.applied_at_ms or 0)}"
    if pending_fence.by_command:
        seen_text = (
            f"its fence_command closed {mirror.source} at {format_time(pending_fence.applied_at_ms or 0)}, which holds"
            " while that does"
        )
    return f"{head} a failover of mirror {mirror.name}, and that {seen_text}."


def _format_unknown(
    cluster: ClusterName, name: MirrorName, others: Mapping[ClusterName, RecordedMirrors | str]
) -> Iterator[str]:
    yield f"nobody who answered knows of mirror {name} away from cluster {cluster}."
    for other, recorded in sorted(others.items()):
        if isinstance(recorded, str):
            yield f"{other}: {recorded}."
        else:
            names = ", ".join(sorted(m.name for m in recorded.mirrors)) or "none"
            yield f"{other} answered; mirrors that lead there: {names}."

"""The old source's fence: observation, late writes, and denials while a run holds the mirror."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from mirror_core.decide.fence_state import (
    FenceDecision,
    FenceNextAction,
    FenceObservation,
    FenceState,
    count_offsets,
    decide_fence,
    decide_source_returned,
    find_fence_state,
    find_late_ranges,
    find_new_late_ranges,
    find_unknown_ends,
    format_late_ranges,
    format_late_writes,
    has_failed_over,
    must_fence_during_run,
    warn_pending_fence,
)
from mirror_core.decide.mirror_snapshot import UnseenCluster, join_limited
from mirror_core.decide.run_result import find_saved
from mirror_core.decide.run_status import find_next_failback
from mirror_core.kafka.acl_requests import (
    AuthorizerOff,
    BrokerAcls,
    create_acls,
    delete_acls,
    describe_acls,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, TimePoint, list_known_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.model.acl import Acl, AclPurpose, Resource
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.errors import ConnectionRejected, LostOwnership, MirrorError, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import Mirror, PartitionStatus
from mirror_core.model.names import ClusterName, Offset, Partition, PartitionOffsets, select_application_partitions
from mirror_core.model.pending_fence import NO_LATE_RANGES, FenceAction, LateRanges, PendingFence
from mirror_core.model.run import Run, RunKind, RunState, StepState
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import (
    MirrorLink,
    check_source_id,
    list_both_directions,
    make_mirror_link,
    read_both_states,
)
from mirror_core.state.point_of_no_return import is_past_no_return
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_complete_state
from mirror_core.sync.fence_acls import (
    STILLNESS_PAUSE_S,
    build_denials,
    deny_writes,
    list_deniable_ids,
    list_unfenced_brokers,
)
from mirror_core.sync.fence_command import FenceCommandFailed, build_command_target, run_fence_command
from mirror_core.sync.fence_command_runner import reconcile_command
from mirror_core.sync.mirror_topics import list_mirror_topics

MAX_STILLNESS_CHECKS: Final = 10


def observe_fence(
    link: MirrorLink, state: State, source: ClusterClient, pending_fence: PendingFence
) -> FenceObservation:
    source_acls = describe_acls(source)
    if pending_fence.action is FenceAction.LIFT:
        return FenceObservation(barred=_find_barrier(link, source_acls))
    # Denials first: a broker that hung may take writes until it has learned of them.
    barred = _find_barrier(link, source_acls)
    unfenced = (
        list_unfenced_brokers(source, list_fence_denials(link, state, pending_fence))
        if barred is WriteBarrier.DENY_ACLS
        else []
    )
    partitions = state.partitions.get(link.mirror.name, {})
    ends = list_known_offsets(source, partitions, OffsetPoint.LOG_END)
    return FenceObservation(
        barred=barred,
        authorizer=link.source.ruling.authorizer,
        unfenced_brokers=tuple(unfenced),
        log_ends=ends,
        written_ranges=_find_late_records(link, source, pending_fence, ends),
        since_offsets=list_since_offsets(link, state, source, pending_fence, ends),
    )


def with_uncopied(
    link: MirrorLink,
    log: JournalLog,
    source: ClusterClient,
    pending_fence: PendingFence,
    recorded: Collection[Partition],
    *,
    before_deny: Callable[[Collection[Acl]], None] = lambda acls: None,
) -> PendingFence:
    """Also fences topics without copy."""
    if pending_fence.uncopied is not None:
        return pending_fence
    try:
        uncopied = _list_uncopied_partitions(link, source, recorded)
        if without_copy := {p.topic for p in uncopied} - {p.topic for p in recorded}:
            deny_all_writers(link, log, source, without_copy, before_deny=before_deny)
            wait_until_still(source, uncopied)
        return _count_uncopied(link, log.state, source, pending_fence, uncopied)
    except LostOwnership:
        raise
    except MirrorError:  # never in the way of a fence
        return pending_fence


def _list_uncopied_partitions(
    link: MirrorLink, source: ClusterClient, recorded: Collection[Partition]
) -> list[Partition]:
    topics = list_mirror_topics(link, source)
    partitions = [Partition(name, i) for name, view in topics.items() for i in view.partitions]
    return sorted(p for p in partitions if p not in recorded)


def _count_uncopied(
    link: MirrorLink,
    state: State,
    source: ClusterClient,
    pending_fence: PendingFence,
    uncopied: Sequence[Partition],
) -> PendingFence:
    starts, ends = (
        list_known_offsets(source, uncopied, point) if uncopied else {}
        for point in (OffsetPoint.START, OffsetPoint.LOG_END)
    )
    found = pending_fence.add_since_offsets(list_since_offsets(link, state, source, pending_fence, ends))
    since_offsets = found.since_offsets.to_mapping()
    parted = {
        p: min(ends[p], max(starts[p], since_offsets.get(p, ends[p]))) for p in uncopied if p in starts and p in ends
    }
    return replace(
        found,
        uncopied=tuple((p.topic, p.index, parted[p] - starts[p] if p in parted else None) for p in uncopied),
        uncopied_since=tuple((p.topic, p.index, ends[p] - parted[p]) for p in sorted(parted) if ends[p] > parted[p]),
    )


def list_since_offsets(
    link: MirrorLink,
    state: State,
    source: ClusterClient,
    pending_fence: PendingFence,
    ends: Mapping[Partition, Offset],
) -> dict[Partition, Offset]:
    """As in `PendingFence`, of partitions of which it has none.

    `ends`: of logs that stand still. A record's time is the application's, and can be ahead.
    """
    unknown_partitions = ends.keys() - pending_fence.since_offsets.to_mapping().keys()
    if not unknown_partitions:
        return {}
    observation = state.find_observation(link.mirror.name)
    seen_ends = {
        p: observed.end
        for p, observed in (() if observation is None else observation.get_ends())
        if observed.at_ms <= pending_fence.since_ms
    }
    offsets = list_known_offsets(source, sorted(unknown_partitions), TimePoint(pending_fence.since_ms))
    return {
        p: ends[p] if offset < 0 else min(ends[p], max(offset, seen_ends.get(p, offset)))
        for p, offset in offsets.items()
    }


def _find_barrier(link: MirrorLink, source_acls: BrokerAcls | AuthorizerOff) -> WriteBarrier:
    return link.source.ruling.get_write_barrier(denials_possible=isinstance(source_acls, BrokerAcls))


def _find_late_records(
    link: MirrorLink, source: ClusterClient, pending_fence: PendingFence, ends: dict[Partition, Offset]
) -> dict[Partition, tuple[Offset, Offset]]:
    """Behind the recorded ends. Transactions that end there append markers only."""
    recorded = pending_fence.log_ends.to_mapping()
    grown = {p: recorded[p] for p, end in ends.items() if end > recorded.get(p, end)}
    if not grown:
        return {}
    stable_ends = list_known_offsets(source, grown, OffsetPoint.STABLE_END)
    log_starts = list_known_offsets(source, grown, OffsetPoint.START)  # retention may have passed the recorded end
    late_ranges: dict[Partition, tuple[Offset, Offset]] = {}
    with LogReader(link.source, timeout_s=TIMEOUTS.old_source_response_s) as reader:
        for partition, recorded_end in grown.items():
            start = max(recorded_end, log_starts.get(partition, recorded_end))
            read_end = min(stable_ends.get(partition, start), ends[partition])
            first_batch = next(reader.batches(partition, start, read_end), None) if read_end > start else None
            if first_batch is not None:
                late_ranges[partition] = (max(start, Offset(first_batch[0].base_offset)), ends[partition])
    return late_ranges


def list_fence_denials(link: MirrorLink, state: State, pending_fence: PendingFence) -> set[Acl]:
    """The ledger's, and those that others had made before."""
    return list_recorded_denials(link, state) | set(
        build_denials({p.topic for p in pending_fence.log_ends.to_mapping()})
    )


def list_recorded_denials(link: MirrorLink, state: State) -> set[Acl]:
    """From names only: an entry of the fence has no other use."""
    recorded = [
        e.acl
        for e in state.ledger_entries(link.mirror.name)
        if e.cluster == link.source.name and e.purpose is AclPurpose.FENCE
    ]
    topics = {acl.name for acl in recorded if acl.resource is Resource.TOPIC}
    ids = {acl.name for acl in recorded if acl.resource is Resource.TRANSACTIONAL_ID}
    return set(build_denials(topics, ids))


def deny_all_writers(
    link: MirrorLink,
    log: JournalLog,
    source: ClusterClient,
    topics: Collection[str],
    ids: Collection[str] = (),
    *,
    before_deny: Callable[[Collection[Acl]], None] = lambda acls: None,
) -> frozenset[Acl] | AuthorizerOff:
    """Also transactions that are open on these topics."""
    denied = deny_writes(link, log, source, topics, ids, before_deny=before_deny)
    if isinstance(denied, AuthorizerOff):
        return denied
    # Topics first: transactions that joined a partition before could still be committed by their producers.
    open_ids = set(list_deniable_ids(list_open_transactions(source, topics))) - set(ids)
    return deny_writes(link, log, source, topics, open_ids, before_deny=before_deny) if open_ids else denied


def wait_until_still(source: ClusterClient, partitions: Iterable[Partition]) -> dict[Partition, Offset]:
    """A super user's logs never stand still."""
    partition_list = list(partitions)
    ends = list_known_offsets(source, partition_list, OffsetPoint.LOG_END)
    for _ in range(MAX_STILLNESS_CHECKS):
        time.sleep(STILLNESS_PAUSE_S)
        before, ends = ends, list_known_offsets(source, partition_list, OffsetPoint.LOG_END)
        if before == ends:
            break
    return ends


def format_new_late_ranges(
    link: MirrorLink, state: State, new_fence: PendingFence, old_fence: PendingFence
) -> Iterator[str]:
    new_ranges = find_new_late_ranges(new_fence, old_fence, state.partitions.get(link.mirror.name, {}))
    if new_ranges:
        yield (
            f"cluster {new_fence.cluster} has what {link.destination.name} never had, written before it fell silent, or"
            " after it came back and before it was fenced:"
            f" {format_late_ranges(new_ranges, state.find_observation(link.mirror.name), new_fence)}"
        )


def add_late_ranges(
    decision: FenceDecision, pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]
) -> FenceDecision:
    unknown_partitions = find_unknown_ends(pending_fence, statuses)
    lines = (
        (
            f"{pending_fence.cluster}: the log end of {join_limited(unknown_partitions)} is not known yet, nor what was"
            " accepted there"
        ),
    )
    return replace(
        decision,
        late_split=pending_fence.split_late_ranges(find_late_ranges(pending_fence, statuses)),
        lines=(*decision.lines, *lines) if unknown_partitions else decision.lines,
    )


_log = get_logger(__name__)


def observe_during_run(link: MirrorLink, state: State, run: Run, pending_fence: PendingFence) -> FenceDecision:
    reapplied = source_answered = False
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.old_source_response_s) as source:
            check_source_id(link, source)
            source_answered = True
            if pending_fence.applied_at_ms is None:  # first: any other request gives writers time
                reapplied = reapply_fence(link, state, source, pending_fence)
            observation = observe_fence(link, state, source, pending_fence)
            if observation.unfenced_brokers or (
                observation.barred is WriteBarrier.COMMAND and observation.written_ranges
            ):
                reapplied = reapply_fence(link, state, source, pending_fence)
    except MirrorError as error:
        decision = decide_fence(pending_fence, run, UnseenCluster(str(error)), during_run=True)
        alarms = () if error.retryable else (Finding("fence_attempt_failed", pending_fence.cluster, reason=error),)
        if source_answered and decision.state is FenceState.PENDING:
            return replace(
                decision,
                standing_alarms=(*warn_pending_fence(pending_fence, (run.id,)), *alarms),
                is_silent=False,
                is_exposed=True,
            )
        return replace(decision, standing_alarms=alarms, is_silent=decision.is_silent and error.retryable)
    decision = decide_fence(pending_fence, run, observation, during_run=True)
    if not reapplied:
        return decision
    fence_text = (
        "fence_command has closed it"
        if observation.barred is WriteBarrier.COMMAND
        else "the fence is seen on every broker"
    )
    line = f"{pending_fence.cluster}: {fence_text}; {run.plan.kind} {run.id} records it when it goes on"
    return replace(decision, action=FenceNextAction.APPLY, lines=(*decision.lines, line))


def observe_returned_source(link: MirrorLink, state: State, run: Run, pending_fence: PendingFence) -> FenceDecision:
    """The source may be back before an unplanned failover has promoted. Changes nothing.

    Without recorded LMOs the destination's log ends stand for them: nobody copies.
    """
    statuses = state.partitions.get(link.mirror.name, {})
    try:
        if unrecorded := [p for p, s in statuses.items() if s.lmo is None]:
            with ClusterClient(link.destination, timeout_s=TIMEOUTS.old_source_response_s) as destination:
                ends_here = list_known_offsets(destination, unrecorded, OffsetPoint.LOG_END)
            statuses = {p: replace(s, lmo=ends_here.get(p, s.lmo)) for p, s in statuses.items()}
        with ClusterClient(link.source, timeout_s=TIMEOUTS.old_source_response_s) as source:
            check_source_id(link, source)
            ends = list_known_offsets(source, select_application_partitions(statuses), OffsetPoint.LOG_END)
    except MirrorError as error:
        return decide_fence(pending_fence, run, UnseenCluster(str(error)), during_run=True)
    late_ranges = find_late_ranges(replace(pending_fence, log_ends=PartitionOffsets.from_mapping(ends)), statuses)
    return decide_source_returned(pending_fence, run, late_ranges, state.find_observation(link.mirror.name))


def find_returned_source(
    link: MirrorLink, states: Mapping[ClusterName, State], silent: Collection[str] = ()
) -> Finding | None:
    """What a cluster that applications left has taken since, where it answers and nothing fences it.

    Asked once for a mirror and its way home: either may have led applications away. `states`: of their destinations,
    as far as they were read. `silent`: clusters that did not answer just now.
    """
    unfenced = (
        (fence, mirror, state)
        for mirror, state in list_both_directions(link.mirror, states)
        if (fence := _find_unfenced(mirror, state)) is not None and mirror.source not in silent
    )
    for pending_fence, mirror, state in sorted(unfenced, key=lambda item: item[0].since_ms, reverse=True):
        returned = _observe_unfenced(make_mirror_link(link.config, mirror), state, pending_fence)
        if returned is not None:
            return returned
    return None


def find_fenced_direction(link: MirrorLink, state: State) -> MirrorLink:
    """The mirror, unless it has no fence to look after and its other direction has one."""
    if link.mirror.name not in state.pending_fences:
        for mirror, recorded in list_both_directions(link.mirror, read_both_states(link, state)):
            if has_failed_over(recorded.pending_fences.get(mirror.name)):
                return make_mirror_link(link.config, mirror)
    return link


def _find_unfenced(mirror: Mirror, state: State) -> PendingFence | None:
    pending_fence = state.pending_fences.get(mirror.name)
    is_unfenced = find_fence_state(pending_fence) in (FenceState.PENDING, FenceState.WATCHED_ONLY)
    return pending_fence if is_unfenced and has_failed_over(pending_fence) else None


def _observe_unfenced(link: MirrorLink, state: State, pending_fence: PendingFence) -> Finding | None:
    name = link.mirror.name
    statuses, run = state.partitions.get(name, {}), state.active_run(name)
    is_fenced_during_run = run is not None and must_fence_during_run(
        pending_fence, run, is_past_no_return=is_past_no_return(state, run)
    )
    partitions = select_application_partitions(statuses)
    late_split, unmeasured, reason, without_copy = NO_LATE_RANGES, list[Partition](), None, dict[Partition, int]()
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.describe_response_s) as source:
            check_source_id(link, source)
            ends = list_known_offsets(source, partitions, OffsetPoint.LOG_END)
            since_offsets = list_since_offsets(link, state, source, pending_fence, ends)
            uncopied = _list_uncopied_partitions(link, source, statuses)
            without_copy = _count_uncopied(link, state, source, pending_fence, uncopied).uncopied_since_offsets
    except MirrorError as error:
        if isinstance(error, Unreachable) and not isinstance(error, ConnectionRejected):
            return None
        reason = error
    else:
        parted = replace(pending_fence.add_since_offsets(since_offsets), log_ends=PartitionOffsets.from_mapping(ends))
        late_split = parted.split_late_ranges(find_late_ranges(parted, statuses))
        late_split = replace(late_split, since={**late_split.since, **_find_ranges_since(parted, statuses)})
        unmeasured = sorted({*late_split.unknown, *(set(partitions) - ends.keys())})
    is_before_known = reason is None and all(statuses[p].lmo is not None for p in partitions)
    return Finding(
        "old_source_unfenced_answers",
        link.source.name,
        mirror=name,
        taken=None
        if reason
        else count_offsets(late_split.since)
        + sum(without_copy[p] for p in select_application_partitions(without_copy)),
        lost=count_offsets(late_split.before) if is_before_known else None,
        unmeasured=unmeasured,
        reason=reason,
        can_fence=find_fence_state(pending_fence) is FenceState.PENDING,
        run_kind=run.plan.kind if run and not is_fenced_during_run else "",
    )


def _find_ranges_since(pending_fence: PendingFence, statuses: Mapping[Partition, PartitionStatus]) -> LateRanges:
    """What applications wrote since, in partitions whose last mirrored offset the run has yet to record."""
    ends, starts = pending_fence.log_ends.to_mapping(), pending_fence.since_offsets.to_mapping()
    unrecorded = [p for p, status in sorted(statuses.items()) if status.lmo is None and p in starts and p in ends]
    return {p: (starts[p], ends[p]) for p in unrecorded if ends[p] > starts[p]}


def reapply_fence(link: MirrorLink, state: State, source: ClusterClient, pending_fence: PendingFence) -> bool:
    """False: there is no way to fence, or the fence is not wanted any more."""
    source_acls = describe_acls(source)
    if isinstance(source_acls, AuthorizerOff):
        topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
        target = build_command_target(link, link.source.name, pending_fence.run, topics)
        try:
            closed = run_fence_command(target, once=True)
        except FenceCommandFailed:
            reconcile_command(link, target, is_closed=True)  # it may have closed it nevertheless, and too late
            raise
        return closed and reconcile_command(link, target, is_closed=True)
    wanted = frozenset(list_recorded_denials(link, state))
    missing = wanted - source_acls.entries
    if missing:
        _log.info("puts up %d denials beside a run", len(missing), cluster=source.name, mirror=link.mirror.name)
        create_acls(source, missing)
        if not _confirm_wanted(link, source, missing):
            return False
    wait_until_acls_present(source, wanted)
    return True


def _confirm_wanted(link: MirrorLink, source: ClusterClient, created: frozenset[Acl]) -> bool:
    """Deletes those of our denials that are not wanted any more.

    Not while the pending fence is recorded: its deletion takes ours along.
    """
    removed = frozenset[Acl]()
    while (unwanted := created - _list_wanted(link, read_complete_state(link.destination))) != removed:
        _log.info("%d denials are not wanted any more", len(unwanted), cluster=source.name, mirror=link.mirror.name)
        create_acls(source, created - unwanted)
        delete_acls(source, unwanted)
        removed = unwanted
    return not removed


def _list_wanted(link: MirrorLink, state: State) -> set[Acl]:
    """ACLs that ledgers want on the source, without a fence being lifted."""
    name, run = link.mirror.name, state.active_run(link.mirror.name)
    is_applying = run is not None and run.plan.kind is RunKind.FAILOVER and run.state is RunState.RUNNING
    is_fence_wanted = is_applying or has_failed_over(state.pending_fences.get(name))
    return {
        entry.acl
        for entry in state.ledger.values()
        if entry.cluster == link.source.name
        and (is_fence_wanted or entry.mirror != name or entry.purpose is not AclPurpose.FENCE)
    }


def describe_late_writes(
    state: State, mirror: Mirror, statuses: Mapping[Partition, PartitionStatus], observation: SourceObservation | None
) -> str:
    pending_fence = state.pending_fences.get(mirror.name)
    has_late_ranges = pending_fence is not None and bool(find_late_ranges(pending_fence, statuses))
    failback = _find_discarding_failback(state, pending_fence) if has_late_ranges and pending_fence else None
    if pending_fence is None or failback is None:
        uncopied = () if pending_fence is None else _list_uncopied(pending_fence)
        return "; ".join(filter(None, (format_late_writes(pending_fence, statuses, observation), *map(str, uncopied))))
    records, folders = find_saved(state.steps_of(failback))
    discarded = Finding(
        "late_ranges_discarded", pending_fence.cluster, run=failback.id, records=records, folders=folders
    )
    return str(discarded)


def _list_uncopied(pending_fence: PendingFence) -> Iterator[Finding]:
    lost, taken = pending_fence.uncopied_offsets, pending_fence.uncopied_since_offsets
    if partitions := sorted(p for p in select_application_partitions(lost) if lost[p] != 0 or p in taken):
        yield Finding(
            "late_uncopied",
            pending_fence.cluster,
            taken=sum(taken.get(p, 0) for p in partitions),
            lost=sum(lost[p] or 0 for p in partitions),
            unmeasured=[p for p in partitions if lost[p] is None],
            partitions=partitions,
        )


def _find_discarding_failback(state: State, pending_fence: PendingFence) -> Run | None:
    """One whose step `align` has taken off the old source what this fence found."""
    run = state.runs.get(pending_fence.run)
    failback = find_next_failback(run, state.runs.values()) if run else None
    align = state.steps.get((failback.id, "align")) if failback else None
    is_cut = align is not None and align.state is StepState.DONE and align.ended_ms is not None
    was_before = is_cut and align is not None and (pending_fence.applied_at_ms or inf) <= (align.ended_ms or 0)
    return failback if was_before else None

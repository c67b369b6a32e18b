"""The old source's fence: observation, late writes, and denials while a run holds the mirror.

The run's conductor may be at work, so nothing is written to the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
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
    has_failed_over,
    warn_pending_fence,
)
from mirror_core.decide.forecast_accuracy import select_application_partitions
from mirror_core.decide.mirror_snapshot import UnseenCluster, join_limited
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
from mirror_core.model.errors import ConnectionRejected, MirrorError, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink, check_source_id
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


def list_since_offsets(
    link: MirrorLink,
    state: State,
    source: ClusterClient,
    pending_fence: PendingFence,
    ends: Mapping[Partition, Offset],
) -> dict[Partition, Offset]:
    """As in `PendingFence`, of partitions of which it has none. `ends`: of logs that stand still.

    A record's time is the application's, and can be ahead: what was there when the source was last seen was lost with
    it, whatever its time.
    """
    unknown_partitions = ends.keys() - pending_fence.since_offsets.to_mapping().keys()
    if not unknown_partitions:
        return {}
    observation = state.source_observations.get(link.mirror.name)
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
            f" {format_late_ranges(new_ranges, state.source_observations.get(link.mirror.name), new_fence)}"
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
    """Observes the cluster once, and creates missing denials."""
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
    return decide_source_returned(pending_fence, run, late_ranges, state.source_observations.get(link.mirror.name))


def find_returned_source(link: MirrorLink, state: State) -> Finding | None:
    """What the old source has taken since a failover, where it answers and nothing fences it."""
    name, pending_fence = link.mirror.name, state.pending_fences.get(link.mirror.name)
    fence_state = find_fence_state(pending_fence)
    is_unfenced = fence_state in (FenceState.PENDING, FenceState.WATCHED_ONLY)
    if pending_fence is None or not has_failed_over(pending_fence) or not is_unfenced:
        return None
    statuses = state.partitions.get(name, {})
    partitions = select_application_partitions(statuses)
    can_fence = fence_state is FenceState.PENDING
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.describe_response_s) as source:
            check_source_id(link, source)
            ends = list_known_offsets(source, partitions, OffsetPoint.LOG_END)
            since_offsets = list_since_offsets(link, state, source, pending_fence, ends)
    except MirrorError as error:
        if isinstance(error, Unreachable) and not isinstance(error, ConnectionRejected):
            return None
        return Finding(
            "old_source_unfenced_answers",
            link.source.name,
            taken=None,
            lost=None,
            unmeasured=(),
            reason=error,
            can_fence=can_fence,
        )
    parted = pending_fence.add_since_offsets(since_offsets)
    late_split = parted.split_late_ranges(
        find_late_ranges(replace(parted, log_ends=PartitionOffsets.from_mapping(ends)), statuses)
    )
    return Finding(
        "old_source_unfenced_answers",
        link.source.name,
        taken=count_offsets(late_split.since),
        lost=count_offsets(late_split.before),
        unmeasured=sorted({*late_split.unknown, *(set(partitions) - ends.keys())}),
        reason=None,
        can_fence=can_fence,
    )


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

    Whoever lifts a fence forgets the pending fence first: if that is still there, the deletion is yet to come and takes
    ours along.
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

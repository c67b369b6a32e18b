"""Keeps the old source fenced while its failover is still open.

Its run may stand for hours after the point of no return. Taking the control id would end a conductor at work, so
nothing is written to the state here: a later step or watcher records what is seen.
"""

from __future__ import annotations

from dataclasses import replace

from mirror_core.decide.reckoning import select_application_partitions
from mirror_core.decide.slipped import find_late_ranges
from mirror_core.decide.standing import (
    FenceDecision,
    FenceNextAction,
    FenceState,
    decide_fence,
    decide_source_returned,
    has_failed_over,
    warn_pending_fence,
)
from mirror_core.decide.view import UnseenCluster
from mirror_core.kafka.acls import AuthorizerOff, create_acls, delete_acls, describe_acls, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, list_known_offsets
from mirror_core.mirrors.old_source import list_recorded_denials, observe_fence
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.logs import get_logger
from mirror_core.model.offsets import PartitionOffsets
from mirror_core.model.ruling import WriteBarrier
from mirror_core.model.run import Run, RunKind, RunState
from mirror_core.model.standing import PendingFence
from mirror_core.state.link import MirrorLink
from mirror_core.state.records import State
from mirror_core.state.topic import read_complete_state
from mirror_core.sync.closing_commands import FenceCommandFailed, build_command_target, run_fence_command
from mirror_core.sync.identity import check_source_id
from mirror_core.sync.shutting import reconcile_command

_log = get_logger(__name__)


def observe_during_run(link: MirrorLink, state: State, run: Run, pending_fence: PendingFence) -> FenceDecision:
    """Observe the cluster once, and create missing denials."""
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
        alarms = () if error.retryable else (str(error),)
        if source_answered and decision.state is FenceState.PENDING:
            return replace(
                decision,
                alarms=(*warn_pending_fence(pending_fence, (run.id,)), *alarms),
                is_silent=False,
                is_exposed=True,
            )
        return replace(decision, alarms=alarms, is_silent=decision.is_silent and error.retryable)
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


def reapply_fence(link: MirrorLink, state: State, source: ClusterClient, pending_fence: PendingFence) -> bool:
    """Returns False when there is no way to fence, or the fence is not wanted any more."""
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
    """Delete those of our denials that are not wanted any more.

    Whoever lifts a fence forgets the pending fence first. If that is there after we have created, the deletion is yet
    to come and takes ours along.
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

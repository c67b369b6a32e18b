"""What a run came to, and the next command."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from mirror_core.decide.approval_rules import explain_expired_run
from mirror_core.decide.failover_scope import FailoverScope, find_failed_since_plan
from mirror_core.decide.fence_state import FenceState, find_fence_state
from mirror_core.decide.forecast_accuracy import (
    compute_last_losses,
    count_lost_unplanned,
    count_taken_since,
    explain_uncopied_records,
    find_not_copied,
)
from mirror_core.decide.process_liveness import ConductorState, WatcherState
from mirror_core.decide.run_result import RunResult, decide_run_result
from mirror_core.decide.run_status import (
    RunSituation,
    can_have_reverse_failover,
    find_newest_run,
    find_next_failback,
    format_newer_run,
    format_not_begun,
    format_reverse_not_begun,
    format_run_status,
    format_unknown_status,
)
from mirror_core.decide.write_access import AccessSituation, WriteAccess, decide_write_access
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.mirrors.fence_manual_commands import list_ways_past_fences, may_be_fenced
from mirror_core.model.acl import AclPurpose
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.errors import MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, format_reverse_name, get_base_name
from mirror_core.model.run import Run, RunKind, RunMode, RunState, StepRecord, StepState
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook.failback_steps import find_reverse_failover
from mirror_core.runbook.failover_conductor import has_disturbed_applications
from mirror_core.state.active_cluster import ActiveCluster
from mirror_core.state.journal import load_checkpoint
from mirror_core.state.lease import observe_live_lease
from mirror_core.state.mirror_link import MirrorLink, is_source_answering, make_mirror_link, read_broker_time_ms
from mirror_core.state.point_of_no_return import awaits_confirmation, is_past_no_return
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state
from mirror_core.state.watcher_heartbeat import observe_watcher
from mirror_core.sync.fence_acls import build_denials


def read_run_outcome(link: MirrorLink, run: Run) -> tuple[str, ...]:
    """Never fails."""
    try:
        state = read_state(link.destination, timeout_s=TIMEOUTS.plan_state_s)
    except MirrorError:
        return explain_unread_run(link, run.plan.kind)
    try:
        return format_run_outcome(link, state, run.id)
    except MirrorError as error:  # steps of another version
        return (f"{error}.",)


def explain_unread_run(link: MirrorLink, kind: RunKind = RunKind.FAILOVER) -> tuple[str, ...]:
    """What else tells where applications write, if the mirror's destination is silent. Never fails."""
    known_lines: tuple[str, ...] = ()
    with suppress(MirrorError):
        known_lines = tuple(list_ways_past_fences(link.config, link.mirror.name))
    return format_unknown_status(link.mirror, kind, known_lines)


def explain_unread_home(link: MirrorLink, state: State) -> tuple[str, ...]:
    """Whether applications can write, and how again, if the old source is silent, which keeps the state of a failback's
    way home. Empty: it answers, or that is not known. Never fails.
    """
    home = format_reverse_name(link.mirror.name)
    with suppress(MirrorError):
        if is_source_answering(link):
            read_state(link.source, timeout_s=TIMEOUTS.plan_state_s)
            return ()
    name, source, new_primary = link.mirror.name, link.source.name, link.destination.name
    has_file = may_be_fenced(link.config, home)
    is_fenced = has_file or _has_denials(link.destination, {p.topic for p in state.partitions.get(name, {})})
    if is_fenced is None:
        return ()
    if not is_fenced:
        return (f"{Finding('way_home_not_fenced', new_primary, mirror=name, source=source, home=home)}.",)
    unread = Finding("way_home_unread", new_primary, mirror=name, source=source, home=home, has_file=has_file)
    known_lines: tuple[str, ...] = ()
    with suppress(MirrorError):
        known_lines = tuple(list_ways_past_fences(link.config, home)) if has_file else ()
    return (f"{unread}.", *known_lines)


def _has_denials(cluster: ClusterConfig, topics: Collection[str]) -> bool | None:
    """Whether a cluster shows a fence, wherever its file is."""
    if cluster.ruling.get_write_barrier(denials_possible=True) is not WriteBarrier.DENY_ACLS:
        return None
    try:
        with ClusterClient(cluster, timeout_s=TIMEOUTS.plan_response_s) as client:
            acls = describe_acls(client)
    except MirrorError:
        return None
    return None if isinstance(acls, AuthorizerOff) else not acls.entries.isdisjoint(build_denials(topics))


def format_run_outcome(link: MirrorLink, state: State, run_id: str) -> tuple[str, ...]:
    name = link.mirror.name
    run = state.runs.get(run_id)
    if run is None:
        return format_unknown_status(link.mirror)
    if overtaken_lines := format_newer_run(run, state.runs.values()):
        return overtaken_lines
    is_copying = observe_live_lease(link.destination, state, name) is not None
    situation = _find_situation(link, state, run, is_copying=is_copying)
    if can_have_reverse_failover(run, situation.steps):
        situation = replace(situation, unread_home=explain_unread_home(link, state))
    return format_run_status(replace(situation, ended_failback=_find_ended_failback(link, run)))


def is_run_superseded(link: MirrorLink, state: State, run: Run) -> bool:
    """Whether something later may have moved applications elsewhere."""
    return bool(format_newer_run(run, state.runs.values()) or _find_ended_failback(link, run))


def _find_ended_failback(link: MirrorLink, run: Run) -> str:
    """Id of the failback that this failover was the way home of, if the new primary says that it has ended."""
    if run.state is not RunState.DONE or not run.failback_run:
        return ""
    try:
        failback = read_state(link.source, timeout_s=TIMEOUTS.plan_state_s).runs.get(run.failback_run)
    except MirrorError:
        return ""
    return "" if failback is None or failback.ended_ms is None else failback.id


def read_write_access(link: MirrorLink, state: State, *, is_source_silent: bool, is_copying: bool) -> WriteAccess:
    statuses, pending_fence = state.partitions.get(link.mirror.name, {}), state.pending_fences.get(link.mirror.name)
    is_lifting = pending_fence is not None and find_fence_state(pending_fence) is FenceState.LIFTING
    newest = find_newest_run(link.mirror.name, state.runs.values())
    return decide_write_access(
        AccessSituation(
            mirror=link.mirror,
            newest_run=None if newest is None else _find_situation(link, state, newest, is_copying=is_copying),
            pending_fence=pending_fence,
            is_source_silent=is_source_silent,
            is_copying=is_copying,
            has_failed=any(status.state is PartitionState.FAILED for status in statuses.values()),
            is_fence_seen=_has_denials(link.source, {p.topic for p in statuses})
            if is_lifting and not is_source_silent
            else None,
            is_watched=observe_watcher(link.destination, state, link.mirror.name).state is WatcherState.ALIVE,
            home=None if newest is None else _read_home_access(link, state, newest),
        )
    )


def find_recorded_access(mirror: Mirror, states: Mapping[ClusterName, State]) -> WriteAccess | None:
    """By the records of clusters that were read: asks none whether a fence stands."""
    state = states.get(mirror.destination)
    if state is None:
        return None
    newest, pending_fence = find_newest_run(mirror.name, state.runs.values()), state.pending_fences.get(mirror.name)
    try:
        situation = None if newest is None else _find_recorded_situation(mirror, state, newest)
        return decide_write_access(
            AccessSituation(
                mirror=mirror,
                newest_run=situation,
                pending_fence=pending_fence,
                is_source_silent=False,
                is_copying=True,
                home=_find_recorded_home(mirror, states, situation),
            )
        )
    except MirrorError:  # a step of another version
        return None


def explain_unseen_home(way_home: Mirror, announcement: ActiveCluster | None) -> Finding:
    """What is known of the home mirror, whose state is on a silent cluster. `announcement`: the newest of it."""
    return Finding(
        "home_mirror_unseen",
        get_base_name(way_home.name),
        source=way_home.destination,
        destination=way_home.source,
        active=announcement.active if announcement else "",
        since_ms=announcement.since_ms if announcement else 0,
        run=announcement.run if announcement else "",
    )


def _find_recorded_home(
    mirror: Mirror, states: Mapping[ClusterName, State], situation: RunSituation | None
) -> WriteAccess | None:
    if situation is None or not can_have_reverse_failover(situation.run, situation.steps):
        return None
    source_state = states.get(mirror.source)
    reverse = None if source_state is None else source_state.mirrors.get(format_reverse_name(mirror.name))
    return None if reverse is None else find_recorded_access(reverse, states)


def _find_recorded_situation(mirror: Mirror, state: State, run: Run) -> RunSituation:
    return RunSituation(
        run=run,
        steps=state.steps_of(run),
        mirror=mirror,
        pending_fence=state.pending_fences.get(mirror.name),
        is_past_no_return=is_past_no_return(state, run),
        is_copying=True,
        source_returned=is_awaiting_confirmation(state, run),
        failed_since_plan=_find_failed_since_plan(state, run),
    )


def _find_failed_since_plan(state: State, run: Run) -> list[PartitionStatus]:
    statuses, drain = state.partitions.get(run.plan.mirror, {}), state.steps.get((run.id, "drain"))
    is_drained = drain is not None and drain.state is StepState.DONE
    if run.state is not RunState.RUNNING or run.plan.mode is not RunMode.PLANNED or is_drained:
        return []
    if all(status.state is not PartitionState.FAILED for status in statuses.values()):
        return []  # a scope of many partitions takes long to decode
    scope = load_checkpoint(state, run.id, "begin", FailoverScope)
    return [] if scope is None else find_failed_since_plan(scope, statuses)


def _read_home_access(link: MirrorLink, state: State, run: Run) -> WriteAccess | None:
    if not can_have_reverse_failover(run, state.steps_of(run)):
        return None
    try:
        source_state = read_state(link.source, timeout_s=TIMEOUTS.plan_state_s)
    except MirrorError:
        return None
    reverse = source_state.mirrors.get(format_reverse_name(link.mirror.name))
    if reverse is None:
        return None
    reverse_link = make_mirror_link(link.config, reverse)
    return read_write_access(reverse_link, source_state, is_source_silent=False, is_copying=True)


def _find_situation(link: MirrorLink, state: State, run: Run, *, is_copying: bool) -> RunSituation:
    name = link.mirror.name
    return replace(
        _find_recorded_situation(state.mirrors.get(name, link.mirror), state, run),
        is_copying=is_copying,
        failed_partitions=[s for s in state.partitions.get(name, {}).values() if s.state is PartitionState.FAILED],
        conductor=observe_conductor(link.destination, state, run),
        lifted_denials=_count_lifted_denials(link, state, run),
    )


def read_run_result(link: MirrorLink, state: State, run: Run) -> RunResult | None:
    """A failback's outage is that of the failover home, if the old source's state can be read."""
    reverse: tuple[Run, tuple[StepRecord, ...]] | None = None
    if run.plan.kind is RunKind.FAILBACK and run.state is RunState.DONE:
        with suppress(MirrorError):
            source_state = read_state(link.source, timeout_s=TIMEOUTS.plan_state_s)
            if (home := find_reverse_failover(source_state, run.id)) is not None:
                reverse = home, source_state.steps_of(home)
    failback_run = find_next_failback(run, state.runs.values())
    return decide_run_result(
        count_lost_behind_fence(state, run),
        state.steps_of(run),
        state.mirrors.get(link.mirror.name, link.mirror),
        reverse,
        () if failback_run is None else state.steps_of(failback_run),
    )


def count_lost_behind_fence(state: State, run: Run) -> Run:
    """Adds what the watcher found later."""
    outcome, name = run.forecast_outcome, run.plan.mirror
    mirror, pending_fence = state.mirrors.get(name), state.pending_fences.get(name)
    if (
        run.plan.mode is not RunMode.UNPLANNED
        or outcome is None
        or outcome.lost_offsets is not None
        or mirror is None
        or pending_fence is None
        or pending_fence.run != run.id
    ):
        return run
    statuses = state.partitions.get(name, {})
    losses = compute_last_losses(mirror, statuses, state.find_observation(name), pending_fence)
    lost = count_lost_unplanned(pending_fence, statuses, losses)
    if lost.offsets is None and lost.least is None:
        return run
    late_ranges, _ = find_not_copied(pending_fence, statuses)
    taken_since = count_taken_since(pending_fence, late_ranges)
    counted = replace(outcome, lost_offsets=lost.offsets, lost_basis=lost.basis, taken_since_offsets=taken_since)
    return replace(run, forecast_outcome=replace(counted, least_lost_offsets=lost.least, uncopied=lost.uncopied_texts))


def _count_lifted_denials(link: MirrorLink, state: State, run: Run) -> int:
    fence = state.steps.get((run.id, "fence"))
    if run.state is not RunState.RUNNING or run.plan.mode is not RunMode.PLANNED or is_past_no_return(state, run):
        return 0
    ledger = (e for e in state.ledger_entries(run.plan.mirror) if e.cluster == link.source.name)
    denials = {e.acl for e in ledger if e.purpose is AclPurpose.FENCE}
    if not denials or fence is None or fence.state is not StepState.DONE:
        return 0
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.plan_response_s) as client:
            acls = describe_acls(client)
    except MirrorError:
        return 0
    return 0 if isinstance(acls, AuthorizerOff) else len(denials - acls.entries)


def read_mirror_status(link: MirrorLink, run_id: str | None) -> tuple[str, ...]:
    """For a task's log, with a failback's reverse failover. `run_id` None: nothing was begun."""
    try:
        state = read_state(link.destination, timeout_s=TIMEOUTS.plan_state_s)
    except MirrorError:
        return explain_unread_run(link)
    run = find_newest_run(link.mirror.name, state.runs.values()) if run_id is None else state.runs.get(run_id)
    lines = (*format_run_outcome(link, state, run.id), *_format_reverse_status(link, state, run)) if run else ()
    if run_id is None:
        return format_not_begun(state.mirrors.get(link.mirror.name, link.mirror), run, lines)
    return lines or format_unknown_status(link.mirror)


def explain_abandoned(link: MirrorLink, state: State, run: Run) -> str:
    """Why nobody will go on with an unnoticed failover; empty: somebody may."""
    if run.plan.kind is not RunKind.FAILOVER or has_disturbed_applications(state, run, link.source.name):
        return ""
    conductor = observe_conductor(link.destination, state, run)
    if conductor.state not in (ConductorState.RELEASED, ConductorState.SILENT):
        return ""
    return explain_expired_run(run, (), state.steps_of(run), read_broker_time_ms(link.destination))


def is_awaiting_confirmation(state: State, run: Run) -> bool:
    """False if everything on the source was copied."""
    name = run.plan.mirror
    if not awaits_confirmation(state, run):
        return False
    mirror, pending_fence = state.mirrors.get(name), state.pending_fences.get(name)
    if mirror is None or pending_fence is None or pending_fence.applied_at_ms is None:
        return True
    statuses = state.partitions.get(name, {})
    return any(explain_uncopied_records(mirror, pending_fence, statuses, state.find_observation(name)))


def _format_reverse_status(link: MirrorLink, state: State, run: Run) -> tuple[str, ...]:
    if not can_have_reverse_failover(run, state.steps_of(run)):
        return ()
    reverse, mirror = format_reverse_name(link.mirror.name), link.mirror
    try:
        source_state = read_state(link.source, timeout_s=TIMEOUTS.plan_state_s)
    except MirrorError:
        return format_unknown_status(
            replace(mirror, name=reverse, source=mirror.destination, destination=mirror.source)
        )
    reverse_run = find_newest_run(
        reverse, (candidate for candidate in source_state.runs.values() if candidate.failback_run == run.id)
    )
    if reverse_run is None or reverse not in source_state.mirrors:
        return format_reverse_not_begun(mirror)
    return format_run_outcome(
        make_mirror_link(link.config, source_state.mirrors[reverse]), source_state, reverse_run.id
    )

"""Applies a pending fence to the old source, verifies it, and watches it. Several watchers may act at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.fence_state import (
    FenceDecision,
    FenceNextAction,
    FenceState,
    add_unreported,
    decide_fence,
    describe_fence,
    is_promoting,
    is_waiting_for_failback,
    mark_applied,
    mark_reported,
    must_fence_during_run,
)
from mirror_core.decide.mirror_snapshot import UnseenCluster
from mirror_core.decide.run_status import RunProgress as At
from mirror_core.decide.run_status import find_run_progress as step_of
from mirror_core.decide.run_status import find_stalled_run, is_stalled
from mirror_core.kafka.acl_requests import AuthorizerOff
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.control import ExtraChecks, take_control
from mirror_core.mirrors.mirror_commands import find_failback, list_failbacks
from mirror_core.mirrors.old_source_fence import (
    add_late_ranges,
    deny_all_writers,
    format_new_late_ranges,
    list_fence_denials,
    list_since_offsets,
    observe_during_run,
    observe_fence,
    observe_returned_source,
    wait_until_still,
    with_uncopied,
)
from mirror_core.model.acl import Resource
from mirror_core.model.errors import LostOwnership, MirrorError, Refused, RemoteFault, format_error_location
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.names import ClusterName, MirrorName, get_base_name
from mirror_core.model.pending_fence import FenceAction, FenceRestoration, PendingFence
from mirror_core.model.run import Run
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.active_cluster import copy_announcement, forget_lift, read_active_cluster
from mirror_core.state.mirror_link import MirrorLink, check_source_id, read_broker_time_ms
from mirror_core.state.point_of_no_return import is_past_no_return, list_run_verbs
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_cache import STATE_CACHE
from mirror_core.state.state_records import State, Tombstone
from mirror_core.state.state_topic import read_state
from mirror_core.state.watcher_heartbeat import WatcherHeartbeats, extra_interval_s
from mirror_core.state.writer import StateWriter
from mirror_core.supervisor.process_identity import get_current_process
from mirror_core.sync.fence_acls import check_stillness, lift_fence
from mirror_core.sync.fence_command import FenceCommandTarget, build_command_target
from mirror_core.sync.fence_command_runner import (
    CommandNotReconciled,
    close_cluster,
    format_held_topics,
    open_cluster,
    write_or_reconcile,
)

_log = get_logger(__name__)
ANSWER_POLL_S: Final = 0.25
FENCE_CHECK_INTERVAL_S: Final = 10.0
HELD_CHECK_INTERVAL_S: Final = 2.0
"""The run may promote at any moment."""
WATCH_COMMAND: Final = "mirrorbook mirror watch"
ANSWER_WAIT_S: Final = 60.0


def check_fence(link: MirrorLink) -> FenceDecision:
    """Observes once; takes the mirror over only to act. May be repeated and interrupted anywhere.

    Errors of the state topic raise; errors of the old source are part of the decision.
    """
    state = read_state(link.destination)
    state.require_readable(link.mirror.name)
    decision = _observe_run_holder(link, state) or _observe_and_decide(link, state)
    if decision.is_held_by_run or decision.action is FenceNextAction.NOTHING:
        return decision
    pending_fence = state.pending_fences.get(link.mirror.name)
    is_missing = decision.action is FenceNextAction.APPLY and decision.state is FenceState.APPLIED
    if pending_fence is not None and is_missing and is_waiting_for_failback(link.mirror.name, pending_fence):
        failback = find_failback(link)
        if failback is not None:  # reverse mirror of a failback: create missing denials without taking it over
            return observe_during_run(link, state, failback, pending_fence)
    try:
        with take_control(link, MirrorCommand.WATCH, _build_reverse_checks(link)) as writer:
            return _apply_decision(link, writer)
    except Refused as refusal:
        return replace(
            decision,
            action=FenceNextAction.NOTHING,
            pending_fence=None,
            lines=refusal.reasons,
            standing_alarms=(),
            one_time_alarms=(),
        )


def record_reported(link: MirrorLink, alarms: Collection[str]) -> None:
    """Call this after reporting the alarms. If it fails they are reported once more."""
    try:
        with take_control(link, MirrorCommand.WATCH, _build_reverse_checks(link)) as writer:
            pending_fence = writer.state.pending_fences.get(link.mirror.name)
            if pending_fence is not None and (updated := mark_reported(pending_fence, alarms)) != pending_fence:
                writer.put(updated)
    except MirrorError as error:
        _log.info("alarms are told once more: %s", error, mirror=link.mirror.name)


def _observe_run_holder(link: MirrorLink, state: State) -> FenceDecision | None:
    """Raises an alarm if the run that holds the mirror has no conductor and nobody can write."""
    run = state.active_run(link.mirror.name)
    if run is None:
        return None
    progress = step_of(run, state.steps_of(run))
    decision = _observe_for_run(link, state, run, progress)
    conductor = observe_conductor(link.destination, state, run)
    stalled = find_stalled_run(
        state.mirrors.get(link.mirror.name, link.mirror), run, progress, conductor, list_run_verbs(state, run)
    )
    return replace(decision, standing_alarms=(stalled, *decision.standing_alarms)) if stalled else decision


def _observe_for_run(link: MirrorLink, state: State, run: Run, progress: At) -> FenceDecision:
    pending_fence, past_no_return = state.pending_fences.get(link.mirror.name), is_past_no_return(state, run)
    if (
        pending_fence is not None
        and not past_no_return
        and is_promoting(
            pending_fence, run, state.steps, is_stalled=is_stalled(progress, read_broker_time_ms(link.destination))
        )
    ):
        return observe_returned_source(link, state, run, pending_fence)
    if pending_fence is None or not must_fence_during_run(pending_fence, run, is_past_no_return=past_no_return):
        return decide_fence(pending_fence, run, UnseenCluster(""))
    return observe_during_run(link, state, run, pending_fence)


def watch_fence(
    link: MirrorLink,
    stop: threading.Event,
    on_decision: Callable[[FenceDecision], None],
    *,
    once: bool = False,
    watcher: str = WATCH_COMMAND,
) -> None:
    """Until no fence is left. `once`: until the cluster has answered."""
    with WatcherHeartbeats(link.destination, watcher, every_s=ANSWER_WAIT_S + extra_interval_s(link)) as signs:
        while not stop.is_set():
            try:
                decision = check_fence(link)
                _report_decision(link, decision, on_decision, signs)
                if decision.state is FenceState.NONE or (once and not decision.is_silent):
                    return
                if decision.is_silent and decision.state is FenceState.PENDING and not decision.is_held_by_run:
                    next_decision = _wait_in_control(link, stop)
                    if next_decision is not None:
                        _report_decision(link, next_decision, on_decision, signs)
                elif decision.is_silent:
                    wait_for_answer(link, stop)
                else:
                    is_unfenced = decision.state is FenceState.PENDING and decision.action is FenceNextAction.NOTHING
                    stop.wait(
                        HELD_CHECK_INTERVAL_S if decision.is_held_by_run and is_unfenced else FENCE_CHECK_INTERVAL_S
                    )
            except LostOwnership as error:
                # Another watcher or command: retry at another moment.
                _log.info("looks again: %s", error, mirror=link.mirror.name)
                stop.wait(random.uniform(1, 3))
            except MirrorError as error:
                if not error.retryable:
                    raise
                _log.warning("looks again: %s", error, mirror=link.mirror.name)
                stop.wait(FENCE_CHECK_INTERVAL_S)
        signs.end(link.mirror.name)


def _report_decision(
    link: MirrorLink, decision: FenceDecision, on_decision: Callable[[FenceDecision], None], signs: WatcherHeartbeats
) -> None:
    on_decision(decision)
    if decision.state is not FenceState.NONE:
        signs.send(link.mirror.name)
    if decision.one_time_alarms:
        record_reported(link, decision.one_time_alarms)


def _wait_in_control(link: MirrorLink, stop: threading.Event) -> FenceDecision | None:
    """Reads the state before the first answer: that takes seconds, in which applications there could write."""
    try:
        with take_control(link, MirrorCommand.WATCH, _build_reverse_checks(link)) as writer:
            if wait_for_answer(link, stop):
                return _apply_decision(link, writer)
    except Refused:
        pass  # the next check reports it
    return None


def _build_reverse_checks(link: MirrorLink) -> ExtraChecks:
    name = link.mirror.name
    return lambda state: list_failbacks(link) if is_waiting_for_failback(name, state.pending_fences.get(name)) else ()


def wait_for_answer(link: MirrorLink, stop: threading.Event, within_s: float = ANSWER_WAIT_S) -> bool:
    deadline = time.monotonic() + within_s
    while not stop.wait(ANSWER_POLL_S) and time.monotonic() < deadline:
        with suppress(RemoteFault), ClusterClient(link.source, timeout_s=TIMEOUTS.pending_fence_probe_s) as client:
            client.metadata(())
            return True
    return False


def _apply_decision(link: MirrorLink, writer: StateWriter) -> FenceDecision:
    pending_fence = writer.state.pending_fences.get(link.mirror.name)
    try:
        if (
            pending_fence is not None
            and pending_fence.action is FenceAction.APPLY
            and pending_fence.applied_at_ms is None
        ):
            applied = _apply_fence(link, writer, pending_fence)  # first: any other request gives writers time
            if applied is not None:
                return applied
        decision = _observe_and_decide(link, writer.state)
        if pending_fence is None or decision.action is FenceNextAction.NOTHING:
            return decision
        if decision.action is FenceNextAction.LIFT:
            return _lift_fence(link, writer, pending_fence)
        if decision.action is FenceNextAction.APPLY:
            pending_fence = add_unreported(pending_fence, decision.one_time_alarms)
            writer.put(pending_fence)  # first: once the fence is up, no check finds the gap any more
            reapplied = _apply_fence(link, writer, pending_fence)
            if reapplied is None:
                return decision
            return replace(
                reapplied,
                standing_alarms=(*decision.standing_alarms, *reapplied.standing_alarms),
                written_ranges=decision.written_ranges,
            )
        if decision.pending_fence is not None:
            writer.put(decision.pending_fence)
        return decision
    except CommandNotReconciled as error:  # the mirror is lost, and its new owner does not know
        return replace(
            decide_fence(pending_fence, None, UnseenCluster(str(error))),
            standing_alarms=(Finding("fence_attempt_failed", link.source.name, reason=error),),
            one_time_alarms=(),
            is_silent=False,
        )
    except LostOwnership:
        raise
    except MirrorError as error:
        return _to_failure(writer, pending_fence, error)


def _to_failure(writer: StateWriter, pending_fence: PendingFence | None, error: MirrorError) -> FenceDecision:
    if pending_fence is None:
        raise error
    trouble = Finding("fence_attempt_failed", pending_fence.cluster, reason=error)
    if not error.retryable and pending_fence.trouble != trouble:
        pending_fence = replace(pending_fence, trouble=trouble)
        writer.put(pending_fence)
    decision = decide_fence(pending_fence, None, UnseenCluster(str(error)))
    if error.retryable:
        return decision
    return _add_problem(decision, pending_fence.cluster, error)


def _add_problem(decision: FenceDecision, cluster: ClusterName, error: MirrorError) -> FenceDecision:
    return replace(
        decision,
        standing_alarms=(*decision.standing_alarms, Finding("fence_attempt_failed", cluster, reason=error)),
        is_silent=False,
        is_exposed=decision.state is FenceState.PENDING,
    )


def _apply_fence(link: MirrorLink, writer: StateWriter, pending_fence: PendingFence) -> FenceDecision | None:
    statuses = writer.state.partitions.get(link.mirror.name, {})
    target = _build_target(link, writer.state, pending_fence)
    with ClusterClient(link.source, timeout_s=TIMEOUTS.old_source_response_s) as source:
        check_source_id(link, source)
        fence_denials = list_fence_denials(link, writer.state, pending_fence)
        topics = {acl.name for acl in fence_denials if acl.resource is Resource.TOPIC}
        transactional_ids = {acl.name for acl in fence_denials if acl.resource is Resource.TRANSACTIONAL_ID}
        by_command = False
        if isinstance(deny_all_writers(link, writer, source, topics, transactional_ids), AuthorizerOff):
            by_command = close_cluster(link, target, lambda: writer.put(pending_fence), once=True)
            if not by_command:
                return None
        ends = (check_stillness if by_command else wait_until_still)(source, statuses)
        parted = pending_fence.add_since_offsets(list_since_offsets(link, writer.state, source, pending_fence, ends))
        parted = with_uncopied(link, writer, source, parted, statuses)
        updated = mark_applied(parted, ends, writer.now_ms(), by_command=by_command)
        if pending_fence.applied_at_ms is not None:
            updated = replace(updated, restored=_make_restoration(link, writer.now_ms()))
    updated = add_unreported(updated, format_new_late_ranges(link, writer.state, updated, pending_fence))
    writer.put(updated)
    if updated.restored is not None and updated.restored.lifted_by:
        forget_lift(link.source, get_base_name(link.mirror.name), TIMEOUTS.old_source_response_s)
    with suppress(MirrorError):  # the cluster missed the active topic's update; optional
        copy_announcement(link.destination, link.source, get_base_name(link.mirror.name))
    lines = list(map(str, describe_fence(updated)))
    if pending_fence.applied_at_ms is None:
        observed_text = "its fence_command has closed it" if updated.by_command else "its fence is seen on every broker"
        lines.append(f"{pending_fence.cluster} answers again, and {observed_text}")
    return add_late_ranges(
        FenceDecision(
            state=FenceState.APPLIED,
            action=FenceNextAction.APPLY,
            pending_fence=updated,
            lines=tuple(lines),
            one_time_alarms=updated.unreported,
        ),
        updated,
        statuses,
    )


def _make_restoration(link: MirrorLink, at_ms: int) -> FenceRestoration:
    process, lift = get_current_process(), None
    with suppress(MirrorError):  # not every cluster has an entry
        announced = read_active_cluster(link.source, get_base_name(link.mirror.name), TIMEOUTS.old_source_response_s)
        lift = announced.fence_lift or None if announced else None
    return FenceRestoration(
        at_ms=at_ms,
        by=f"{process.machine.host}, process {process.pid}",
        lifted_by=lift.by if lift else "",
        lifted_ms=lift.at_ms if lift else 0,
    )


def _lift_fence(link: MirrorLink, writer: StateWriter, pending_fence: PendingFence) -> FenceDecision:
    writer.put(pending_fence)  # proves ownership
    with ClusterClient(link.source, timeout_s=TIMEOUTS.old_source_response_s) as source:
        check_source_id(link, source)
        lift_fence(link.mirror, writer, source)
        target = _build_target(link, writer.state, pending_fence)
        held_topics = frozenset[str]()
        if pending_fence.by_command:
            held_topics = open_cluster(link, writer.state, target, lambda: writer.put(pending_fence))
            write_or_reconcile(link, target, lambda: writer.put(Tombstone(pending_fence)))
        else:
            writer.put(Tombstone(pending_fence))
    line = (
        f"{pending_fence.cluster} answers again, and the fence of run {pending_fence.run} is lifted: applications may"
        " write there"
    )
    return FenceDecision(
        state=FenceState.NONE,
        action=FenceNextAction.LIFT,
        lines=(line, *format_held_topics(pending_fence.cluster, held_topics)),
    )


def _build_target(link: MirrorLink, state: State, pending_fence: PendingFence) -> FenceCommandTarget:
    topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
    return build_command_target(link, link.source.name, pending_fence.run, topics)


def _observe_and_decide(link: MirrorLink, state: State) -> FenceDecision:
    pending_fence = state.pending_fences.get(link.mirror.name)
    if pending_fence is None:
        return decide_fence(pending_fence, None, UnseenCluster(""))
    statuses = state.partitions.get(link.mirror.name, {})
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.old_source_response_s) as source:
            check_source_id(link, source)
            decision = decide_fence(pending_fence, None, observe_fence(link, state, source, pending_fence))
    except MirrorError as error:
        decision = decide_fence(pending_fence, None, UnseenCluster(str(error)))
        if not error.retryable:
            decision = _add_problem(decision, pending_fence.cluster, error)
    updated = decision.pending_fence or pending_fence
    if decision.pending_fence is not None and updated.applied_at_ms is not None:
        new_alarms = tuple(format_new_late_ranges(link, state, updated, pending_fence))
        updated = add_unreported(updated, new_alarms)
        decision = replace(
            decision,
            pending_fence=updated,
            one_time_alarms=(*decision.one_time_alarms, *new_alarms),
        )
    return add_late_ranges(decision, updated, statuses)


MAX_PARALLEL_PROBES: Final = 8
"""A silent cluster costs seconds of each."""
PROBE_RETRY_S: Final = 2.0
ProbeOutcome = FenceDecision | MirrorError


def probe_each(links: Collection[MirrorLink]) -> dict[MirrorName, ProbeOutcome]:
    """Observes each old source once; a silent cluster delays nobody longer than one probe."""
    with STATE_CACHE.enable(), ThreadPoolExecutor(MAX_PARALLEL_PROBES) as pool:
        outcomes = pool.map(_probe_safely, links)
        return dict(zip((link.mirror.name for link in links), outcomes, strict=True))


def record_watched(
    links: Collection[MirrorLink], outcomes: Mapping[MirrorName, ProbeOutcome], watcher: str, interval_s: float
) -> None:
    """The next check comes within `interval_s`."""
    for cluster in {link.destination.name: link.destination for link in links}.values():
        links_here = [link for link in links if link.destination.name == cluster.name]
        with WatcherHeartbeats(cluster, watcher, interval_s + max(map(extra_interval_s, links_here))) as signs:
            for link in links_here:
                outcome = outcomes[link.mirror.name]
                if isinstance(outcome, FenceDecision) and outcome.state is not FenceState.NONE:
                    signs.send(link.mirror.name)


def list_silent_sources(
    links: Collection[MirrorLink], outcomes: Mapping[MirrorName, ProbeOutcome]
) -> dict[ClusterName, list[MirrorName]]:
    waiting: dict[ClusterName, list[MirrorName]] = {}
    for link in links:
        outcome = outcomes[link.mirror.name]
        if isinstance(outcome, FenceDecision) and outcome.is_silent:
            waiting.setdefault(link.source.name, []).append(link.mirror.name)
    return waiting


def probe_on_first_answer(links: Collection[MirrorLink], seconds: float) -> dict[MirrorName, ProbeOutcome]:
    """Mirrors of one source; empty if its first answer takes too long."""
    first, stop = next(iter(links)), threading.Event()
    with STATE_CACHE.enable():
        for destination in {link.destination.name: link.destination for link in links}.values():
            with suppress(MirrorError):  # cached, so that the probe at its first answer only reads on
                read_state(destination)
        return probe_each(links) if wait_for_answer(first, stop, seconds) else {}


def list_repeated_alarms(outcomes: Mapping[MirrorName, ProbeOutcome]) -> dict[MirrorName, tuple[str, ...]]:
    return {
        name: outcome.one_time_alarms
        for name, outcome in outcomes.items()
        if isinstance(outcome, FenceDecision) and outcome.one_time_alarms
    }


def record_reported_alarms(
    links: Collection[MirrorLink], alarms_by_mirror: Mapping[MirrorName, Collection[str]]
) -> None:
    for link in links:
        if alarms := alarms_by_mirror.get(link.mirror.name):
            record_reported(link, alarms)


def _probe_safely(link: MirrorLink) -> ProbeOutcome:
    """A defect becomes an error: it hides no other mirror's alarm."""
    try:
        outcome = _probe_once(link)
        if isinstance(outcome, MirrorError) and outcome.retryable and not isinstance(outcome, LostOwnership):
            time.sleep(PROBE_RETRY_S)
            outcome = _probe_once(link)
    except Exception as error:  # noqa: BLE001 - told by its type alone
        return MirrorError(f"a defect of Mirrorbook: {format_error_location(error)}")
    return outcome


def _probe_once(link: MirrorLink) -> ProbeOutcome:
    try:
        return check_fence(link)
    except MirrorError as error:
        return error

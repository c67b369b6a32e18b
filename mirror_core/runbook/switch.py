"""Step `switch`: tells applications the active cluster, by topic and by hooks.

Failures never block a failover. A hook is called at least once, and the run id identifies repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from mirror_core.decide.mirror_snapshot import UnseenCluster
from mirror_core.kafka.config import Config
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.figures import FigureKey, FigureValue, limit_names
from mirror_core.model.hooks import (
    HOOK_VARIABLE_PREFIX,
    Hook,
    HookCommand,
    HookOutcome,
    HookRequest,
    compute_retry_pause_s,
)
from mirror_core.model.logs import get_logger
from mirror_core.model.names import ClusterName, get_base_name
from mirror_core.model.run import RunMode, StepEvidence
from mirror_core.model.text import format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.runbook.hook_calls import await_health, build_request, send_request
from mirror_core.runbook.snapshot_reader import Query
from mirror_core.runbook.step_records import Announcement, HookCall, HookCalls
from mirror_core.state.active_cluster import ActiveCluster, announce_active_cluster, read_active_cluster
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync.subprocess_hook import SubprocessAttempt, run_program

SWITCH_STEP: Final = "switch"

_log = get_logger(__name__)


def switch(link: MirrorLink, journal: Journal) -> StepEvidence:
    """Fails only if the mirror was taken over."""
    announcement = _load_announcement(link, journal)
    source_query = Query(lambda: announce_active_cluster(link.source, announcement, TIMEOUTS.silent_source_s))
    deadline = time.monotonic() + (
        TIMEOUTS.plan_cluster_idle_s if journal.run.plan.mode is RunMode.UNPLANNED else TIMEOUTS.announce_remote_s
    )
    try:
        destination_result: ActiveCluster | UnseenCluster = announce_active_cluster(
            link.destination, announcement, TIMEOUTS.announce_destination_s
        )
    except MirrorError as error:
        destination_result = UnseenCluster(str(error))
    hook_results = run_hooks(link, announcement, journal)
    announced = {link.destination.name: destination_result, link.source.name: source_query.await_result(deadline)}
    return dict(_format_evidence(link, announcement, hook_results, journal.run.plan.mode, announced))


def check_health(link: MirrorLink, journal: Journal) -> StepEvidence:
    """Empty: none is configured. Neither a failure nor a hanging command ends the run."""
    hook = link.config.health_command(link.mirror.name)
    if hook is None:
        return {}
    variables = _format_variables(hook_arguments(_load_announcement(link, journal), journal.run.plan.mode))
    return await_health(link.config, hook, variables)


def run_hooks(
    link: MirrorLink,
    active: ActiveCluster,
    journal: Journal,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[HookCall, ...]:
    hooks = link.config.hooks(link.mirror.name)
    calls = {call.hook: call for call in (journal.load_checkpoint(SWITCH_STEP, HookCalls) or HookCalls()).calls}

    def record_call(call: HookCall) -> None:
        calls[call.hook] = call
        journal.save_checkpoint(SWITCH_STEP, HookCalls(calls=tuple(calls.values())))

    for hook in hooks:
        call = calls.get(hook.name) or HookCall(hook=hook.name)
        if not call.ended:
            _run_hook(link.config, hook, call, active, journal, record_call, pause=pause)
    return tuple(calls[hook.name] for hook in hooks)


def _load_announcement(link: MirrorLink, journal: Journal) -> ActiveCluster:
    """Recorded before anybody is told, so a run always announces the same."""
    announcement = journal.load_checkpoint(SWITCH_STEP, Announcement)
    if announcement is None:
        mirror, destination = get_base_name(link.mirror.name), link.destination
        sides = [destination] if journal.run.plan.mode is RunMode.UNPLANNED else [destination, link.source]
        queries = [Query(partial(read_active_cluster, cluster, mirror, TIMEOUTS.silent_source_s)) for cluster in sides]
        deadline = time.monotonic() + TIMEOUTS.announce_remote_s
        generations = [
            newest_record.generation
            for query in queries
            if isinstance(newest_record := query.await_result(deadline), ActiveCluster)
        ]
        announcement = Announcement(
            active=ActiveCluster(
                mirror=mirror,
                active=destination.name,
                cluster_id=link.mirror.destination_id,
                bootstrap_servers=destination.control["bootstrap.servers"],
                since_ms=journal.log.now_ms(),
                run=journal.run_id,
                generation=max(generations, default=0) + 1,
            )
        )
        journal.save_checkpoint(SWITCH_STEP, announcement)
    return announcement.active


def _run_hook(
    config: Config,
    hook: Hook,
    call: HookCall,
    active: ActiveCluster,
    journal: Journal,
    record_call: Callable[[HookCall], None],
    *,
    pause: Callable[[float], None],
) -> None:
    started, tries = time.monotonic(), 0
    while True:
        call, tries = replace(call, tries=call.tries + 1), tries + 1
        record_call(call)  # raises if we were replaced: then call nothing
        result = _try_hook(config, hook, active, journal.run.plan.mode)
        if result.answer is not HookOutcome.RETRY or tries > hook.retries:
            break
        _log.info("hook %s: %s; again", hook.name, result.problem)
        pause(compute_retry_pause_s(tries))
    seconds = round(call.seconds + time.monotonic() - started, 3)
    record_call(replace(call, ended=True, seconds=seconds, problem=result.problem))
    if result.problem:
        _log.warning("hook %s failed after %s: %s", hook.name, format_count(call.tries, "attempt"), result.problem)


def _try_hook(config: Config, hook: Hook, active: ActiveCluster, mode: RunMode) -> SubprocessAttempt:
    arguments = hook_arguments(active, mode)
    match hook.call:
        case HookCommand():
            return run_program(config, hook.call, _format_variables(arguments), hook.timeout_s)
        case HookRequest():
            try:
                url, headers, body = build_request(config, hook.name, hook.call)
            except BadRequest as error:
                return SubprocessAttempt(HookOutcome.GIVE_UP, str(error))
            return send_request(url, hook.call.method, headers, {**body, **arguments}, hook.timeout_s)


def _format_variables(arguments: Mapping[str, str | int]) -> dict[str, str]:
    return {f"{HOOK_VARIABLE_PREFIX}{name.upper()}": str(value) for name, value in arguments.items()}


def hook_arguments(active: ActiveCluster, mode: RunMode) -> dict[str, str | int]:
    return {**msgspec.to_builtins(active), "mode": mode}


def _format_evidence(
    link: MirrorLink,
    active: ActiveCluster,
    calls: tuple[HookCall, ...],
    mode: RunMode,
    announced: Mapping[ClusterName, ActiveCluster | UnseenCluster],
) -> Iterator[tuple[str, FigureValue]]:
    yield "active cluster", active.active
    yield "generation", active.generation
    for cluster, reply in announced.items():
        yield f"announced on {cluster}", _format_announcement(active, reply)
    for call in calls:
        times = f"called {format_count(call.tries, 'time')} in {call.seconds:.1f} s"
        yield f"hook {call.hook}", f"failed, {times}: {call.problem}" if call.problem else f"done, {times}"
    failed = [call.hook for call in calls if call.problem]
    yield FigureKey.FAILED_HOOKS, limit_names(failed)
    if failed:
        arguments = hook_arguments(active, mode)
        environment = " ".join(f"{name}={value}" for name, value in _format_variables(arguments).items())
        yield (
            "call them by hand",
            (
                f"as mirrors.{active.mirror}.switch in {link.config.path} has them; a command with {environment}; a "
                f"request with the body {msgspec.json.encode(arguments).decode()}"
            ),
        )


def _format_announcement(active: ActiveCluster, reply: ActiveCluster | UnseenCluster) -> str:
    if isinstance(reply, UnseenCluster):
        return f"pending: {reply.reason}"
    return "yes" if reply == active else f"no: generation {reply.generation} of run {reply.run or 'none'} stands there"

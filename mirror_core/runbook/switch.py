"""Step `switch`: tells applications the active cluster, by topic and by hooks.

Failures are evidence and never block a failover. A hook call is recorded before every attempt and after its end: it
happens at least once, and the run id identifies repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from mirror_core.decide.calling import Answer, pause_s
from mirror_core.decide.view import Unseen, some
from mirror_core.kafka.config import Config
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.hooks import AssetEvent, Command, Hook, Http, asset_uri
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.names import ClusterName, base_name
from mirror_core.model.run import Evidence, Mode
from mirror_core.runbook.checkpoints import Announced, Called, HookCall
from mirror_core.runbook.hook_calls import request_of, send
from mirror_core.runbook.observe import Ask
from mirror_core.state.active import Active, announce, newest
from mirror_core.state.journal import Journal
from mirror_core.state.link import Link
from mirror_core.sync.programs import Tried, start

STEP: Final = "switch"

_log = logger(__name__)


def switch(link: Link, journal: Journal, *, by_airflow: bool) -> Evidence:
    """Fails only if the mirror was taken over. `by_airflow`: the task emits the asset event itself."""
    active = _active(link, journal)
    there = Ask(lambda: announce(link.source, active, LIMITS.silent_source_s))
    deadline = time.monotonic() + (
        LIMITS.planned_side_s if journal.run.plan.mode is Mode.UNPLANNED else LIMITS.far_side_s
    )
    try:
        here: Active | Unseen = announce(link.destination, active, LIMITS.told_destination_s)
    except MirrorError as error:
        here = Unseen(str(error))
    calls = run_hooks(link, active, journal, by_airflow=by_airflow)
    announced = {link.destination.name: here, link.source.name: there.answer(deadline)}
    return dict(_evidence(link, active, calls, journal.run.plan.mode, announced))


def run_hooks(
    link: Link,
    active: Active,
    journal: Journal,
    *,
    by_airflow: bool,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[HookCall, ...]:
    hooks = link.config.hooks(link.mirror.name)
    calls = {call.hook: call for call in (journal.kept(STEP, Called) or Called()).calls}

    def note(call: HookCall) -> None:
        calls[call.hook] = call
        journal.keep(STEP, Called(calls=tuple(calls.values())))

    for hook in hooks:
        call = calls.get(hook.name) or HookCall(hook=hook.name)
        if not call.ended:
            _call(link.config, hook, call, active, journal, note, by_airflow=by_airflow, pause=pause)
    return tuple(calls[hook.name] for hook in hooks)


def _active(link: Link, journal: Journal) -> Active:
    """Recorded before anybody is told, so a run always announces the same."""
    kept = journal.kept(STEP, Announced)
    if kept is None:
        mirror, destination = base_name(link.mirror.name), link.destination
        sides = [destination] if journal.run.plan.mode is Mode.UNPLANNED else [destination, link.source]
        looks = [Ask(partial(newest, cluster, mirror, LIMITS.silent_source_s)) for cluster in sides]
        deadline = time.monotonic() + LIMITS.far_side_s
        seen = [found.generation for look in looks if isinstance(found := look.answer(deadline), Active)]
        kept = Announced(
            active=Active(
                mirror=mirror,
                active=destination.name,
                cluster_id=link.mirror.destination_id,
                bootstrap_servers=destination.control["bootstrap.servers"],
                since_ms=now_ms(),
                run=journal.run_id,
                generation=max(seen, default=0) + 1,
            )
        )
        journal.keep(STEP, kept)
    return kept.active


def _call(
    config: Config,
    hook: Hook,
    call: HookCall,
    active: Active,
    journal: Journal,
    note: Callable[[HookCall], None],
    *,
    by_airflow: bool,
    pause: Callable[[float], None],
) -> None:
    started, tries = time.monotonic(), 0
    while True:
        call, tries = replace(call, tries=call.tries + 1), tries + 1
        note(call)  # raises if we were replaced: then call nothing
        found = _try(config, hook, active, journal.run.plan.mode, by_airflow=by_airflow)
        if found.answer is not Answer.AGAIN or tries > hook.retries:
            break
        _log.info("hook %s: %s; again", hook.name, found.problem)
        pause(pause_s(tries))
    seconds = round(call.seconds + time.monotonic() - started, 3)
    note(replace(call, ended=True, seconds=seconds, problem=found.problem))
    if found.problem:
        _log.warning("hook %s failed after %d time(s): %s", hook.name, call.tries, found.problem)


def _try(config: Config, hook: Hook, active: Active, mode: Mode, *, by_airflow: bool) -> Tried:
    told = given(active, mode)
    match hook.call:
        case Command():
            environment = {f"MIRRORBOOK_{name.upper()}": str(value) for name, value in told.items()}
            return start(hook.call.argv, environment, config.path.parent, hook.timeout_s)
        case Http():
            try:
                url, headers, body = request_of(config, hook.name, hook.call)
            except BadRequest as error:
                return Tried(Answer.NEVER, str(error))
            return send(url, hook.call.method, headers, {**body, **told}, hook.timeout_s)
        case AssetEvent():
            if by_airflow:
                return Tried(Answer.DONE)
            uri = asset_uri(active.mirror)
            return Tried(Answer.NEVER, f"only Airflow's task of this step emits events: create one of asset {uri}")


def given(active: Active, mode: Mode) -> dict[str, str | int]:
    return {**msgspec.to_builtins(active), "mode": mode}


def _evidence(
    link: Link,
    active: Active,
    calls: tuple[HookCall, ...],
    mode: Mode,
    announced: Mapping[ClusterName, Active | Unseen],
) -> Iterator[tuple[str, str | int]]:
    yield "active cluster", active.active
    yield "generation", active.generation
    for cluster, said in announced.items():
        yield f"announced on {cluster}", _announced(active, said)
    for call in calls:
        times = f"called {call.tries} time(s) in {call.seconds:.1f} s"
        yield f"hook {call.hook}", f"failed, {times}: {call.problem}" if call.problem else f"done, {times}"
    failed = [call.hook for call in calls if call.problem]
    yield "hooks that failed", some(failed) or "none"
    if failed:
        told = given(active, mode)
        environment = " ".join(f"MIRRORBOOK_{name.upper()}={value}" for name, value in told.items())
        yield (
            "call them by hand",
            (
                f"as mirrors.{active.mirror}.switch in {link.config.path} has them; a command with {environment}; a "
                f"request with the body {msgspec.json.encode(told).decode()}"
            ),
        )


def _announced(active: Active, said: Active | Unseen) -> str:
    if isinstance(said, Unseen):
        return f"pending: {said.reason}"
    return "yes" if said == active else f"no: generation {said.generation} of run {said.run or 'none'} stands there"

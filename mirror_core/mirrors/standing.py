"""Applies a pending fence to the old source, verifies it, and watches it.

Several watchers may act at once, and each may sleep; ACLs know no owner. So a watcher writes to the state, acts, and
writes again. A watcher that lost the mirror removes what is not in the new owner's ledger.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mirror_core.decide.abandoned import abandoned, held_up
from mirror_core.decide.run_standing import Standing as At
from mirror_core.decide.run_standing import standing_of as step_of
from mirror_core.decide.standing import (
    Action,
    Judgement,
    Standing,
    fenced_beside,
    judge,
    paid,
    promoting,
    told_of,
    unsaid,
    waits_for_home,
    words,
)
from mirror_core.decide.verbs import Verb
from mirror_core.decide.view import Unseen
from mirror_core.kafka.acls import AuthorizerOff
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.beside import look_at_returned, look_beside
from mirror_core.mirrors.door import Look, door
from mirror_core.mirrors.old_source import called_for, denials, keep_out, shown, still, with_places
from mirror_core.mirrors.verbs import failback_over, way_home
from mirror_core.model.acl import Resource
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import LostOwnership, MirrorError, Refused, RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.names import base_name
from mirror_core.model.run import Run
from mirror_core.model.standing import Debt, Owed
from mirror_core.state.active import repeat
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import Forget, State
from mirror_core.state.topic import read_state
from mirror_core.state.turning import turned
from mirror_core.state.watchers import Signs, busy_s
from mirror_core.state.writer import StateWriter
from mirror_core.sync.closing_commands import Closable, closable
from mirror_core.sync.fence import lift_fence, seen_still
from mirror_core.sync.identity import check_source
from mirror_core.sync.kept_closed import stay_closed
from mirror_core.sync.shutting import NotPutRight, closed_through, opened_through, owned_after

_log = logger(__name__)

POLL_S: Final = 0.25
LOOK_S: Final = 10.0
HELD_S: Final = 2.0
"""The run may promote at any moment."""
BY_COMMAND: Final = "mirrorbook mirror watch"
WAIT_S: Final = 60.0


def look_after(link: Link) -> Judgement:
    """Observe once; the mirror is taken over only to act. May be repeated and interrupted anywhere.

    Errors of the state topic raise; errors of the old source are part of the decision.
    """
    state = read_state(link.destination)
    state.require(link.mirror.name)
    found = _beside(link, state) or _judged(link, state)
    if found.held or found.action is Action.NOTHING:
        return found
    debt = state.debts.get(link.mirror.name)
    taken_away = found.action is Action.FENCE and found.standing is Standing.STANDS
    if debt is not None and taken_away and waits_for_home(link.mirror.name, debt):
        failback = failback_over(link)
        if failback is not None:  # reverse mirror of a failback: create missing denials without taking it over
            return look_beside(link, state, failback, debt)
    try:
        with door(link, Verb.WATCH, _held(link)) as writer:
            return _carry_out(link, writer)
    except Refused as held:
        return replace(found, action=Action.NOTHING, debt=None, lines=held.reasons, alarms=(), once=())


def said(link: Link, alarms: Collection[str]) -> None:
    """Call this after reporting the alarms. If it fails they are reported once more."""
    try:
        with door(link, Verb.WATCH, _held(link)) as writer:
            debt = writer.state.debts.get(link.mirror.name)
            if debt is not None and (now := told_of(debt, alarms)) != debt:
                writer.put(now)
    except MirrorError as error:
        _log.info("alarms are told once more: %s", error, mirror=link.mirror.name)


def _beside(link: Link, state: State) -> Judgement | None:
    """Observe while a run holds the mirror; raises an alarm if it has no conductor and nobody can write."""
    run = state.active_run(link.mirror.name)
    if run is None:
        return None
    at = step_of(run, state.steps_of(run))
    found = _beside_run(link, state, run, at)
    alarms = abandoned(state.mirrors.get(link.mirror.name, link.mirror), run, at, conducted(state, run))
    return replace(found, alarms=(*alarms, *found.alarms))


def _beside_run(link: Link, state: State, run: Run, at: At) -> Judgement:
    debt, past = state.debts.get(link.mirror.name), turned(state, run)
    if debt is not None and not past and promoting(debt, run, state.steps, held_up=held_up(at, now_ms())):
        return look_at_returned(link, state, run, debt)
    if debt is None or not fenced_beside(debt, run, turned=past):
        return judge(debt, run, Unseen(""))
    return look_beside(link, state, run, debt)


def watch(
    link: Link,
    stop: threading.Event,
    tell: Callable[[Judgement], None],
    *,
    once: bool = False,
    by: str = BY_COMMAND,
) -> None:
    """Watch until no fence is left. `once`: until the cluster has answered."""
    with Signs(link.destination, by, every_s=WAIT_S + busy_s(link)) as signs:
        while not stop.is_set():
            try:
                found = look_after(link)
                _tell(link, found, tell, signs)
                if found.standing is Standing.NOTHING or (once and not found.silent):
                    return
                if found.silent and found.standing is Standing.OWED and not found.held:
                    again = _await(link, stop)
                    if again is not None:
                        _tell(link, again, tell, signs)
                elif found.silent:
                    answers(link, stop)
                else:
                    bare = found.standing is Standing.OWED and found.action is Action.NOTHING
                    stop.wait(HELD_S if found.held and bare else LOOK_S)
            except LostOwnership as error:
                # Another watcher or command: retry at another moment.
                _log.info("looks again: %s", error, mirror=link.mirror.name)
                stop.wait(random.uniform(1, 3))
            except MirrorError as error:
                if not error.retryable:
                    raise
                _log.warning("looks again: %s", error, mirror=link.mirror.name)
                stop.wait(LOOK_S)


def _tell(link: Link, found: Judgement, tell: Callable[[Judgement], None], signs: Signs) -> None:
    tell(found)
    if found.standing is not Standing.NOTHING:
        signs.give(link.mirror.name)
    if found.once:
        said(link, found.once)


def _await(link: Link, stop: threading.Event) -> Judgement | None:
    """Wait in control of the mirror, with its state read, so that the first answer is fenced.

    Reading a large state takes seconds in which applications there could write.
    """
    try:
        with door(link, Verb.WATCH, _held(link)) as writer:
            if answers(link, stop):
                return _carry_out(link, writer)
    except Refused:
        pass  # the next check reports it
    return None


def _held(link: Link) -> Look:
    name = link.mirror.name
    return lambda state: way_home(link) if waits_for_home(name, state.debts.get(name)) else ()


def answers(link: Link, stop: threading.Event, within_s: float = WAIT_S) -> bool:
    deadline = time.monotonic() + within_s
    while not stop.wait(POLL_S) and time.monotonic() < deadline:
        with suppress(RemoteFault), ClusterClient(link.source, timeout_s=LIMITS.probed_source_s) as client:
            client.metadata(())
            return True
    return False


def _carry_out(link: Link, writer: StateWriter) -> Judgement:
    """Decide as owner, by what the cluster shows now."""
    debt = writer.state.debts.get(link.mirror.name)
    try:
        if debt is not None and debt.owed is Owed.FENCE and debt.paid_ms is None:
            fenced = _fenced(link, writer, debt)  # first: any other request gives writers time
            if fenced is not None:
                return fenced
        found = _judged(link, writer.state)
        if debt is None or found.action is Action.NOTHING:
            return found
        if found.action is Action.UNFENCE:
            return _unfenced(link, writer, debt)
        if found.action is Action.FENCE:
            debt = unsaid(debt, found.once)
            writer.put(debt)  # first: once the fence is up, no check finds the gap any more
            again = _fenced(link, writer, debt)
            if again is None:
                return found
            return replace(again, alarms=tuple(dict.fromkeys((*found.alarms, *again.alarms))), written=found.written)
        if found.debt is not None:
            writer.put(found.debt)
        return found
    except NotPutRight as error:  # the mirror is lost, and its new owner does not know
        return replace(judge(debt, None, Unseen(str(error))), alarms=(str(error),), silent=False)
    except LostOwnership:
        raise
    except MirrorError as error:
        return _failed(writer, debt, error)


def _failed(writer: StateWriter, debt: Debt | None, error: MirrorError) -> Judgement:
    """Retriable errors raise no alarm."""
    if debt is None:
        raise error
    if not error.retryable and debt.trouble != str(error):
        debt = replace(debt, trouble=str(error))
        writer.put(debt)
    found = judge(debt, None, Unseen(str(error)))
    if error.retryable:
        return found
    alarms = (*found.alarms, str(error))
    return replace(found, alarms=alarms, silent=False, exposed=found.standing is Standing.OWED)


def _fenced(link: Link, writer: StateWriter, debt: Debt) -> Judgement | None:
    """Returns None when there is no way to fence."""
    statuses = writer.state.partitions.get(link.mirror.name, {})
    where = _closable(link, writer.state, debt)
    with ClusterClient(link.source, timeout_s=LIMITS.old_source_s) as source:
        check_source(link, source)
        wanted = denials(link, writer.state, debt)
        topics = {acl.name for acl in wanted if acl.resource is Resource.TOPIC}
        ids = {acl.name for acl in wanted if acl.resource is Resource.TRANSACTIONAL_ID}
        by_command = False
        if isinstance(keep_out(link, writer, source, topics, ids), AuthorizerOff):
            by_command = closed_through(link, where, lambda: writer.put(debt), once=True)
            if not by_command:
                return None
        ends = (seen_still if by_command else still)(source, statuses)
        now = paid(debt, ends, now_ms(), by_command=by_command)
    now = unsaid(now, called_for(link, writer.state, now, debt))
    writer.put(now)
    with suppress(MirrorError):  # the cluster missed the active topic's update; optional
        repeat(link.destination, link.source, base_name(link.mirror.name))
    lines = list(words(now))
    if debt.paid_ms is None:
        seen = "its fence_command has closed it" if now.by_command else "its fence is seen on every broker"
        lines.append(f"{debt.cluster} answers again, and {seen}")
    return with_places(
        Judgement(
            standing=Standing.STANDS,
            action=Action.FENCE,
            debt=now,
            lines=tuple(lines),
            alarms=now.unsaid,
            once=now.unsaid,
        ),
        now,
        statuses,
    )


def _unfenced(link: Link, writer: StateWriter, debt: Debt) -> Judgement:
    writer.put(debt)  # proves ownership
    with ClusterClient(link.source, timeout_s=LIMITS.old_source_s) as source:
        check_source(link, source)
        lift_fence(link.mirror, writer, source)
        where = _closable(link, writer.state, debt)
        kept = frozenset[str]()
        if debt.by_command:
            kept = opened_through(link, writer.state, where, lambda: writer.put(debt))
            owned_after(link, where, lambda: writer.put(Forget(debt)))
        else:
            writer.put(Forget(debt))
    line = f"{debt.cluster} answers again, and the fence of run {debt.run} is lifted: applications may write there"
    return Judgement(standing=Standing.NOTHING, action=Action.UNFENCE, lines=(line, *stay_closed(debt.cluster, kept)))


def _closable(link: Link, state: State, debt: Debt) -> Closable:
    topics = {p.topic for p in state.partitions.get(link.mirror.name, {})}
    return closable(link, link.source.name, debt.run, topics)


def _judged(link: Link, state: State) -> Judgement:
    debt = state.debts.get(link.mirror.name)
    if debt is None:
        return judge(debt, None, Unseen(""))
    statuses = state.partitions.get(link.mirror.name, {})
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.old_source_s) as source:
            check_source(link, source)
            found = judge(debt, None, shown(link, state, source, debt))
    except MirrorError as error:
        found = judge(debt, None, Unseen(str(error)))
        if not error.retryable:
            alarms = (*found.alarms, str(error))
            found = replace(found, alarms=alarms, silent=False, exposed=found.standing is Standing.OWED)
    now = found.debt or debt
    if found.debt is not None and now.paid_ms is not None:
        news = tuple(called_for(link, state, now, debt))
        now = unsaid(now, news)
        found = replace(found, debt=now, alarms=(*found.alarms, *news), once=(*found.once, *news))
    return with_places(found, now, statuses)

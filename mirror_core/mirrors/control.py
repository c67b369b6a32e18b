"""Takes over a mirror's state for a command."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from mirror_core.decide.command_rules import (
    COMMAND_RULES,
    CommandContext,
    MirrorCommand,
    explain_interruption,
    explain_refusals,
    list_effects,
)
from mirror_core.decide.fence_state import FenceState, find_fence_state, has_failed_over
from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.model.errors import HeldByRun, LostOwnership, Refused
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.text import format_count
from mirror_core.model.timing import CLOCK_TIMEOUT_S
from mirror_core.state.lease import find_live_lease, find_writers_left_ms
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.run_heartbeat import end_turn, find_conductor_status, find_turn_holder, hold_turn
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_complete_state
from mirror_core.state.writer import StateWriter, make_control_id

_log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_ATTEMPTS: Final = 4
_RETRY_PAUSE_S: Final = (0.2, 1.0)
"""Longer than a takeover; random, so that two retries do not meet."""

TURN_POLL_S: Final = 1.0

ExtraChecks = Callable[[State], Iterable[Finding | str]]


@dataclass(frozen=True, slots=True)
class CommandPreview:
    lines: tuple[str, ...]
    refusal: Refused | None

    def raise_refusal(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def preview_command(
    link: MirrorLink, verb: MirrorCommand, extra_checks: ExtraChecks = lambda state: ()
) -> CommandPreview:
    """Changes nothing. Indeterminate when a record is unreadable: it may be a run that holds the mirror."""
    state, status = _observe(link)
    mirror = status.mirror or link.mirror
    lines = (
        (
            f"{verb} mirror {mirror.name} ({mirror.source} -> {mirror.destination}, {mirror.desired}):"
            f" {COMMAND_RULES[verb].effect}"
        ),
        *map(str, list_effects(verb, status)),
    )
    return CommandPreview(lines, _find_refusal(link, verb, status, extra_checks(state)))


@contextmanager
def take_control(
    link: MirrorLink, verb: MirrorCommand, extra_checks: ExtraChecks = lambda state: ()
) -> Iterator[StateWriter]:
    """Refused when the command may not act."""
    _wait_for_turn(link, verb, extra_checks)
    with StateWriter(link.destination, make_control_id(link.mirror.name)) as writer:
        status = _read_status(link, writer.state)
        if status.run is not None:
            raise HeldByRun(f"mirror {link.mirror.name}: {verb}", [explain_interruption(status.run)])
        refusal = _find_refusal(link, verb, status, extra_checks(writer.state))
        if refusal is not None:
            raise refusal
        takes_turns = COMMAND_RULES[verb].takes_turns
        if status.turn_holder is not None and not takes_turns:
            end_turn(writer)
        with hold_turn(writer, verb) if takes_turns else nullcontext():
            yield writer


def _wait_for_turn(link: MirrorLink, verb: MirrorCommand, extra_checks: ExtraChecks) -> None:
    is_reported = False
    while True:
        state, status = _observe(link)
        refusal = _find_refusal(link, verb, status, extra_checks(state))
        if refusal is not None:
            raise refusal
        holder = status.turn_holder
        if holder is None or not COMMAND_RULES[verb].takes_turns:
            return
        if not is_reported:
            is_reported = True
            holder_text = f"{holder.by} on {holder.host}, process {holder.pid}"
            _log.warning("%s waits for the end of %s", verb, holder_text, mirror=link.mirror.name)
        time.sleep(TURN_POLL_S)


def retry_until_owned(verb: Callable[P, T]) -> Callable[P, T]:
    """Another command may take the mirror meanwhile. Each try looks again, so a run refuses it."""

    @wraps(verb)
    def retrying(*args: P.args, **kwargs: P.kwargs) -> T:
        for attempts_left in reversed(range(1, MAX_ATTEMPTS)):
            try:
                return verb(*args, **kwargs)
            except LostOwnership as error:
                _log.info("%s is tried again, %s more: %s", verb.__name__, format_count(attempts_left, "time"), error)
                time.sleep(random.uniform(*_RETRY_PAUSE_S))
        return verb(*args, **kwargs)

    return retrying


def _observe(link: MirrorLink) -> tuple[State, CommandContext]:
    state = read_complete_state(link.destination)
    state.require_readable(link.mirror.name)
    return state, _read_status(link, state)


def _read_status(link: MirrorLink, state: State) -> CommandContext:
    name = link.mirror.name
    pending_fence, run = state.pending_fences.get(name), state.active_run(name)
    ahead_ms = measure_clock_ahead_ms(link.destination, timeout_s=CLOCK_TIMEOUT_S)
    live_copier = find_live_lease(state, name, ahead_ms)
    return CommandContext(
        mirror=state.mirrors.get(name),
        run=run,
        statuses=tuple(state.partitions.get(name, {}).values()),
        copier=live_copier.owner if live_copier else None,
        tasks_may_write_s=max(0, find_writers_left_ms(state, name, ahead_ms) or 0) / 1000,
        has_failed_over=has_failed_over(pending_fence),
        fenced_by_command=(
            pending_fence.cluster
            if pending_fence is not None
            and find_fence_state(pending_fence) is FenceState.APPLIED
            and pending_fence.by_command
            else None
        ),
        run_verbs=list_run_verbs(state, run) if run else (),
        conductor=find_conductor_status(state, run, ahead_ms) if run else UNKNOWN_CONDUCTOR,
        turn_holder=find_turn_holder(state, name, ahead_ms),
    )


def _find_refusal(
    link: MirrorLink, verb: MirrorCommand, status: CommandContext, extra_reasons: Iterable[Finding | str]
) -> Refused | None:
    reasons = [*explain_refusals(verb, status), *extra_reasons]
    title = f"mirror {link.mirror.name}: {verb}"
    if not reasons:
        return None
    return HeldByRun(title, reasons) if status.run is not None else Refused(title, reasons, "command_refused")

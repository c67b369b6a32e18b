"""Takes over a mirror's state for a command: look, decide, then take the control id."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from mirror_core.decide.conducting import NOT_KNOWN
from mirror_core.decide.standing import Standing, failed_over, standing_of
from mirror_core.decide.verbs import RULES, Seen, Verb, effects, interrupted, refusals
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import HeldByRun, LostOwnership, Refused
from mirror_core.model.logs import logger
from mirror_core.state.lease import copier
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole
from mirror_core.state.writer import StateWriter, control_id

_log = logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TRIES: Final = 4
_PAUSE_S: Final = (0.2, 1.0)
"""Longer than a takeover; random, so that two retries do not meet."""

Look = Callable[[State], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Intent:
    lines: tuple[str, ...]
    refused: Refused | None

    def check(self) -> None:
        if self.refused is not None:
            raise self.refused


def intend(link: Link, verb: Verb, more: Look = lambda state: ()) -> Intent:
    """Changes nothing. Indeterminate when a record is unreadable: it may be a run that holds the mirror."""
    state = read_whole(link.destination)
    state.require(link.mirror.name)
    seen = _seen(link, state)
    mirror = seen.mirror or link.mirror
    lines = (
        f"{verb} mirror {mirror.name} ({mirror.source} -> {mirror.destination}, {mirror.desired}): {RULES[verb].does}",
        *effects(verb, seen),
    )
    return Intent(lines, _refusal(link, verb, seen, more(state)))


@contextmanager
def door(link: Link, verb: Verb, more: Look = lambda state: ()) -> Iterator[StateWriter]:
    """Refused without disturbing anybody when the command may not act."""
    intend(link, verb, more).check()
    with StateWriter(link.destination, control_id(link.mirror.name)) as writer:
        seen = _seen(link, writer.state)
        if seen.run is not None:
            raise HeldByRun(f"mirror {link.mirror.name}: {verb}", [interrupted(seen.run)])
        refused = _refusal(link, verb, seen, more(writer.state))
        if refused is not None:
            raise refused
        yield writer


def insistent(verb: Callable[P, T]) -> Callable[P, T]:
    """A periodic sync may take the mirror in between. Each try looks again, so a run refuses it."""

    @wraps(verb)
    def insisting(*args: P.args, **kwargs: P.kwargs) -> T:
        for left in reversed(range(1, TRIES)):
            try:
                return verb(*args, **kwargs)
            except LostOwnership as error:
                _log.info("%s is tried again, %d time(s) more: %s", verb.__name__, left, error)
                time.sleep(random.uniform(*_PAUSE_S))
        return verb(*args, **kwargs)

    return insisting


def _seen(link: Link, state: State) -> Seen:
    name = link.mirror.name
    lease, debt = state.leases.get(name), state.debts.get(name)
    living, run = copier(state, name), state.active_run(name)
    return Seen(
        mirror=state.mirrors.get(name),
        run=run,
        statuses=tuple(state.partitions.get(name, {}).values()),
        copier=living.owner if living else None,
        writing_s=max(0, lease.writers_until_ms - now_ms()) / 1000 if lease else 0,
        failed_over=failed_over(debt),
        closed=debt.cluster if debt is not None and standing_of(debt) is Standing.STANDS and debt.by_command else None,
        conducted=conducted(state, run) if run else NOT_KNOWN,
    )


def _refusal(link: Link, verb: Verb, seen: Seen, more: Iterable[str]) -> Refused | None:
    reasons = [*refusals(verb, seen), *more]
    kind = HeldByRun if seen.run is not None else Refused
    return kind(f"mirror {link.mirror.name}: {verb}", reasons) if reasons else None

"""Who may have a cluster closed or opened by its command, and what whoever did so too late puts right.

A command knows no owner, and whoever calls it may have slept before. So a caller writes to the mirror's state before
and after, which only its owner can; who has lost the mirror meanwhile makes the cluster as the new owner's state wants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mirror_core.decide.shutting import keeps_shut
from mirror_core.model.errors import LostOwnership
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Desired
from mirror_core.model.run import Run
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole
from mirror_core.sync.closing_commands import Closable, CommandFailed, open_again, shut

_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shut:
    """Kept by a run before it calls `fence_command`, and after: an abort then opens the cluster again."""

    VERSION: ClassVar[int] = 1
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Kept by a run before it calls `unfence_command` for the destination, and after."""

    VERSION: ClassVar[int] = 1
    cluster: str


def has_shut(state: State, run: Run) -> bool:
    """Whether this run has called the source's `fence_command`, or was about to."""
    return any(of == run.id and kind == Shut.__name__ for of, _, kind in state.checkpoints)


def owned_after(link: Link, where: Closable, write: Callable[[], None]) -> None:
    """Write what only the mirror's owner can, after a command was called for its source. If the mirror is another's by
    now, the source is made as that one's state wants it."""
    try:
        write()
    except LostOwnership:
        if where.cluster.ruling.fence is not None:
            put_right(link, where)
        raise


def opened_by_owner(link: Link, where: Closable, write: Callable[[], None]) -> None:
    """The same after the destination was opened: it is closed again if it is a mirror's by now."""
    try:
        write()
    except LostOwnership:
        mirror = read_whole(link.destination).mirrors.get(link.mirror.name)
        if mirror is not None and mirror.desired is not Desired.STOPPED:
            shut(where)
        raise


def put_right(link: Link, where: Closable, done: bool | None = None) -> bool:
    """Close or open the source as the mirror's state wants it now; whether it is to be closed. `done`: what it is by a
    call of ours a moment ago. Looked at again after each call, since that takes its time."""
    while (wanted := _wanted(link, where)) != done:
        _log.info("to be put right: %s", "closed" if wanted else "open", cluster=where.cluster.name)
        (shut if wanted else open_again)(where)
        done = wanted
    return wanted


def _wanted(link: Link, where: Closable) -> bool:
    name = link.mirror.name
    state = read_whole(link.destination)
    run = state.active_run(name)
    wanted = keeps_shut(state.debts.get(name), run, begun=run is not None and has_shut(state, run))
    if wanted is None:
        raise CommandFailed(
            f"cluster {where.cluster.name}: a command for run {where.run} was called late, while a failback is under "
            f"way. As long as {where.cluster.name} is a mirror's destination it must be closed to applications, and "
            "open when they are home: see to it by its own means"
        )
    return wanted

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from mirror_core.decide.shutting import keeps_shut
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.logs import logger
from mirror_core.model.mirror import Desired
from mirror_core.model.run import RunKind
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_whole
from mirror_core.sync.closing_commands import Closable, CommandFailed, open_again, shut
from mirror_core.sync.closings import has_shut
from mirror_core.sync.kept_closed import kept_closed

_log = logger(__name__)


class NotPutRight(LostOwnership):
    """Called for a lost mirror, and the cluster's state is unknown."""


def owned_after(link: Link, where: Closable, write: Callable[[], None]) -> None:
    """Confirm ownership after a command; if it is lost, reconcile the source with the owner's state."""
    try:
        write()
    except LostOwnership:
        if where.cluster.ruling.fence is None:
            raise
        with _told(where):
            put_right(link, where)
        raise


def closed_through(link: Link, where: Closable, write: Callable[[], None], *, once: bool = False) -> bool:
    """Close the source by its command. `write` comes before each try and after the last one.

    A try that failed or came too late may have closed it.
    """

    def close(where: Closable, *, before: Callable[[], None]) -> bool:
        return shut(where, once=once, before=before)

    def after() -> None:
        owned_after(link, where, write)

    closed = _through(where, write, close, after)
    if closed:
        after()
    return closed


def opened_through(link: Link, state: State, where: Closable, write: Callable[[], None]) -> frozenset[str]:
    """Open the source by its command; returns topics that stay closed for other mirrors."""
    if where.cluster.ruling.unfence is None:
        raise CommandFailed(
            f"cluster {where.cluster.name} was closed by its fence_command, and mirrorbook.yaml has no unfence_command "
            "for it now: write it there again"
        )
    kept, rest = _without_kept(link, state, where)
    if rest is not None:
        _through(rest, write, open_again, lambda: owned_after(link, where, write))
    return kept


def destination_opened_through(link: Link, where: Closable, write: Callable[[], None]) -> bool:
    """Open a run's destination; it is closed again if it is a mirror's by then."""

    def after() -> None:
        _opened_by_owner(link, where, write)

    opened = _through(where, write, open_again, after)
    if opened:
        after()
    return opened


class _Call(Protocol):
    def __call__(self, where: Closable, *, before: Callable[[], None]) -> bool: ...


def _through(where: Closable, write: Callable[[], None], call: _Call, after: Callable[[], None]) -> bool:
    """`after` repairs what came too late."""
    tried = False

    def before() -> None:
        nonlocal tried
        if tried:
            after()
        else:
            write()
        tried = True

    try:
        return call(where, before=before)
    except CommandFailed:
        after()
        raise


@contextmanager
def _told(where: Closable) -> Iterator[None]:
    try:
        yield
    except MirrorError as error:
        raise NotPutRight(
            f"run {where.run} has lost mirror {where.mirror} while a command was called for cluster "
            f"{where.cluster.name}, and whether that is closed to applications as it has to be is not known: {error}"
        ) from error


def _without_kept(link: Link, state: State, where: Closable) -> tuple[frozenset[str], Closable | None]:
    kept = kept_closed(link, state, where.topics)
    rest = replace(where, topics=frozenset(where.topics) - kept)
    return kept, None if kept and not rest.topics else rest


def _opened_by_owner(link: Link, where: Closable, write: Callable[[], None]) -> None:
    try:
        write()
    except LostOwnership:
        with _told(where):
            state = read_whole(link.destination)
            mirror, run = state.mirrors.get(link.mirror.name), state.active_run(link.mirror.name)
            if run is not None and run.plan.kind is RunKind.FAILBACK:
                raise CommandFailed(f"failback {run.id} is under way, and nobody knows by this how far") from None
            if mirror is not None and mirror.desired is not Desired.STOPPED:
                shut(where)
        raise


def put_right(link: Link, where: Closable, done: bool | None = None) -> bool:
    """Close or open the source as the mirror's state wants it; returns whether it is closed.

    State is read again after each call, since calls take time.
    """
    while True:
        state = read_whole(link.destination)
        wanted = _wanted(link, state, where)
        if wanted == done:
            return wanted
        _log.info("to be put right: %s", "closed" if wanted else "open", cluster=where.cluster.name)
        if wanted:
            shut(where)
        elif (rest := _without_kept(link, state, where)[1]) is not None:
            open_again(rest)
        done = wanted


def _wanted(link: Link, state: State, where: Closable) -> bool:
    name = link.mirror.name
    run = state.active_run(name)
    begun = run is not None and has_shut(state, run)
    wanted = keeps_shut(state.mirrors.get(name), state.debts.get(name), run, begun=begun)
    if wanted is None:
        raise CommandFailed(
            f"cluster {where.cluster.name}: a command for run {where.run} was called late, while a failback is under "
            f"way, or behind it, or for a mirror that was deleted or stopped. As long as {where.cluster.name} is a "
            "mirror's destination, or applications have moved away from it, it must be closed to them, and open when "
            "they are home: see to it by its own means"
        )
    return wanted

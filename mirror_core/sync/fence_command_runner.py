"""Calls fence commands under the mirror's ownership, and repairs late calls.

A topic stays closed while another mirror's failover needs that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from mirror_core.decide.fence_state import must_stay_fenced
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.errors import LostOwnership, MirrorError
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.run import Run, RunKind
from mirror_core.state.mirror_link import MirrorLink, read_other_states, read_source_state
from mirror_core.state.record_encoding import parse_mirror_name
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_complete_state
from mirror_core.sync.fence_command import (
    FenceCommandFailed,
    FenceCommandTarget,
    has_closed_source,
    run_fence_command,
    run_unfence_command,
)


def find_held_topics(link: MirrorLink, state: State, topics: Collection[str]) -> frozenset[str]:
    """FenceCommandFailed where a cluster that may know does not answer: nothing may be opened then."""
    source, destination = link.source.name, link.destination.name
    states = ((destination, state), *read_source_state(link), *read_other_states(link))
    holders, unanswered = find_topic_holders(states, link.mirror.source_id, (destination, link.mirror.name), topics)
    # When such a failback ends, nobody would open them.
    unanswered += tuple(f"a failback of mirror {h.mirror.name} is under way" for h in holders if not h.is_certain)
    if unanswered:
        raise FenceCommandFailed(
            f"cluster {source} is not opened: whether another mirror's failover keeps topics there closed is not known "
            f"({'; '.join(unanswered)}). A cluster that never comes back has to leave mirrorbook.yaml"
        )
    return frozenset().union(*(holder.topics for holder in holders))


@dataclass(frozen=True, slots=True)
class TopicHolder:
    """A mirror that keeps topics on a cluster closed to applications."""

    mirror: Mirror
    run: Run | None
    topics: frozenset[str]
    is_certain: bool


def find_topic_holders(
    states: Iterable[tuple[ClusterName, State | MirrorError]],
    source_id: str,
    own: tuple[ClusterName, MirrorName],
    topics: Collection[str],
) -> tuple[tuple[TopicHolder, ...], tuple[str, ...]]:
    """Mirrors that hold some of `topics`, and clusters that did not answer. `own`: the one that wants to open."""
    holders, unanswered = list[TopicHolder](), list[str]()
    for cluster, state_or_error in states:
        try:
            for holder in _list_holders(state_or_error, source_id, cluster, own[1] if cluster == own[0] else None):
                if held := holder.topics & set(topics):
                    holders.append(replace(holder, topics=held))
        except MirrorError as error:
            unanswered.append(f"{cluster}: {error}")
    return tuple(holders), tuple(sorted(unanswered))


def format_held_topics(source: ClusterName, held: Collection[str]) -> Iterator[str]:
    if held:
        yield (
            f"{source} is open again but for {join_limited(sorted(held))}: another mirror's failover keeps that closed"
        )


def _list_holders(
    state_or_error: State | MirrorError, source_id: str, cluster: ClusterName, own_mirror: MirrorName | None
) -> Iterator[TopicHolder]:
    """As source or as unpromoted destination."""
    if isinstance(state_or_error, MirrorError):
        raise state_or_error
    state = state_or_error
    for name in {parse_mirror_name(key) for key in state.unreadable} - {own_mirror, None}:
        state.require_readable(MirrorName(str(name)))
    for mirror in state.mirrors.values():
        if mirror.destination != cluster or mirror.name == own_mirror:
            continue
        if mirror.source_id == source_id:
            must_close = _must_source_stay_closed(state, mirror)
        else:
            must_close = mirror.destination_id == source_id and mirror.desired is not DesiredState.STOPPED
        if must_close is not False:
            topics = frozenset(p.topic for p in state.partitions.get(mirror.name, {}))
            yield TopicHolder(mirror, state.active_run(mirror.name), topics, is_certain=must_close is True)


def _must_source_stay_closed(state: State, mirror: Mirror) -> bool | None:
    pending_fence, run = state.pending_fences.get(mirror.name), state.active_run(mirror.name)
    if pending_fence is None and run is None:
        return False
    return must_stay_fenced(
        mirror, pending_fence, run, is_command_begun=run is not None and has_closed_source(state, run)
    )


_log = get_logger(__name__)


class CommandNotReconciled(LostOwnership):
    """Called for a lost mirror, and the cluster's state is unknown."""


def write_or_reconcile(link: MirrorLink, target: FenceCommandTarget, write: Callable[[], None]) -> None:
    """Confirms ownership after a command; if it is lost, reconciles the source with the owner's state."""
    try:
        write()
    except LostOwnership:
        if target.cluster.ruling.fence_command is None:
            raise
        with _raise_not_reconciled(target):
            reconcile_command(link, target)
        raise


def close_cluster(
    link: MirrorLink, target: FenceCommandTarget, write: Callable[[], None], *, once: bool = False
) -> bool:
    """`write` comes before each try and after the last one. A try that failed or came too late may have closed the
    source.
    """

    def close(target: FenceCommandTarget, *, before_try: Callable[[], None]) -> bool:
        return run_fence_command(target, once=once, before_try=before_try)

    def after() -> None:
        write_or_reconcile(link, target, write)

    closed = _run_owned_command(target, write, close, after)
    if closed:
        after()
    return closed


def open_cluster(
    link: MirrorLink, state: State, target: FenceCommandTarget, write: Callable[[], None]
) -> frozenset[str]:
    """Returns topics that stay closed for other mirrors."""
    if target.cluster.ruling.unfence_command is None:
        raise FenceCommandFailed(
            f"cluster {target.cluster.name} was closed by its fence_command, and mirrorbook.yaml has no unfence_command"
            " for it now: write it there again"
        )
    held, remaining = _exclude_held_topics(link, state, target)
    if remaining is not None:
        _run_owned_command(remaining, write, run_unfence_command, lambda: write_or_reconcile(link, target, write))
    return held


def open_destination(link: MirrorLink, target: FenceCommandTarget, write: Callable[[], None]) -> bool:
    """A run's destination; it is closed again if it is a mirror's by then."""

    def after() -> None:
        _confirm_destination_owner(link, target, write)

    opened = _run_owned_command(target, write, run_unfence_command, after)
    if opened:
        after()
    return opened


class _CommandRunner(Protocol):
    def __call__(self, target: FenceCommandTarget, *, before_try: Callable[[], None]) -> bool: ...


def _run_owned_command(
    target: FenceCommandTarget, write: Callable[[], None], run_command: _CommandRunner, after: Callable[[], None]
) -> bool:
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
        return run_command(target, before_try=before)
    except FenceCommandFailed:
        after()
        raise


@contextmanager
def _raise_not_reconciled(target: FenceCommandTarget) -> Iterator[None]:
    try:
        yield
    except MirrorError as error:
        raise CommandNotReconciled(
            f"run {target.run} has lost mirror {target.mirror} while a command was called for cluster "
            f"{target.cluster.name}, and whether that is closed to applications as it has to be is not known: {error}"
        ) from error


def _exclude_held_topics(
    link: MirrorLink, state: State, target: FenceCommandTarget
) -> tuple[frozenset[str], FenceCommandTarget | None]:
    held = find_held_topics(link, state, target.topics)
    remaining = replace(target, topics=frozenset(target.topics) - held)
    return held, None if held and not remaining.topics else remaining


def _confirm_destination_owner(link: MirrorLink, target: FenceCommandTarget, write: Callable[[], None]) -> None:
    try:
        write()
    except LostOwnership:
        with _raise_not_reconciled(target):
            state = read_complete_state(link.destination)
            mirror, run = state.mirrors.get(link.mirror.name), state.active_run(link.mirror.name)
            if run is not None and run.plan.kind is RunKind.FAILBACK:
                raise FenceCommandFailed(f"failback {run.id} is under way, and nobody knows by this how far") from None
            if mirror is not None and mirror.desired is not DesiredState.STOPPED:
                run_fence_command(target)
        raise


def reconcile_command(link: MirrorLink, target: FenceCommandTarget, is_closed: bool | None = None) -> bool:
    """Closes or opens the source as the mirror's state wants it; returns whether it is closed.

    State is read again after each call, since calls take time.
    """
    while True:
        state = read_complete_state(link.destination)
        must_close = _must_be_closed(link, state, target)
        if must_close == is_closed:
            return must_close
        _log.info("to be put right: %s", "closed" if must_close else "open", cluster=target.cluster.name)
        if must_close:
            run_fence_command(target)
        elif (remaining := _exclude_held_topics(link, state, target)[1]) is not None:
            run_unfence_command(remaining)
        is_closed = must_close


def _must_be_closed(link: MirrorLink, state: State, target: FenceCommandTarget) -> bool:
    name = link.mirror.name
    run = state.active_run(name)
    has_begun = run is not None and has_closed_source(state, run)
    must_close = must_stay_fenced(
        state.mirrors.get(name), state.pending_fences.get(name), run, is_command_begun=has_begun
    )
    if must_close is None:
        raise FenceCommandFailed(
            f"cluster {target.cluster.name}: a command for run {target.run} was called late, while a failback is under "
            f"way, or behind it, or for a mirror that was deleted or stopped. As long as {target.cluster.name} is a "
            "mirror's destination, or applications have moved away from it, it must be closed to them, and open when "
            "they are home: see to it by its own means"
        )
    return must_close

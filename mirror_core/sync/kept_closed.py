"""Calls fence commands under the mirror's ownership, and repairs calls that came too late.

A command knows no owner, and its caller may have slept. So the caller writes to the state before and after, which only
the owner can. A caller that lost the mirror makes the cluster as the new owner's state wants it. A topic stays closed
while another mirror's failover needs that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mirror_core.decide.shutting import must_stay_fenced
from mirror_core.decide.view import join_limited
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import DesiredState, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state.keys import parse_mirror_name
from mirror_core.state.link import MirrorLink, read_other_states, read_source_state
from mirror_core.state.records import State
from mirror_core.sync.closing_commands import FenceCommandFailed
from mirror_core.sync.closings import has_closed_source


def find_held_topics(link: MirrorLink, state: State, topics: Collection[str]) -> frozenset[str]:
    """FenceCommandFailed where a cluster that may know does not answer: nothing may be opened then."""
    source, destination = link.source.name, link.destination.name
    states = ((destination, state), *read_source_state(link), *read_other_states(link))
    held, unanswered = find_held_topics_in(states, link.mirror.source_id, (destination, link.mirror.name), set(topics))
    if unanswered:
        raise FenceCommandFailed(
            f"cluster {source} is not opened: whether another mirror's failover keeps topics there closed is not known "
            f"({'; '.join(unanswered)}). A cluster that never comes back has to leave mirrorbook.yaml"
        )
    return held & set(topics)


def find_held_topics_in(
    states: Iterable[tuple[ClusterName, State | MirrorError]],
    source_id: str,
    own: tuple[ClusterName, MirrorName],
    topics: Collection[str] = (),
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Held topics, and clusters that did not answer. `own`: destination and name of the asking mirror."""
    held, unanswered = set[str](), list[str]()
    for cluster, state_or_error in states:
        try:
            for mirror, is_certain in _list_holding_mirrors(
                state_or_error, source_id, cluster, own[1] if cluster == own[0] else None
            ):
                mirror_topics = (
                    {p.topic for p in state_or_error.partitions.get(mirror, {})}
                    if isinstance(state_or_error, State)
                    else set()
                )
                held |= mirror_topics
                if not is_certain and mirror_topics & set(topics):  # the failback ends, and nobody would open them then
                    unanswered.append(f"{cluster}: a failback of mirror {mirror} is under way")
        except MirrorError as error:
            unanswered.append(f"{cluster}: {error}")
    return frozenset(held), tuple(sorted(unanswered))


def format_held_topics(source: ClusterName, held: Collection[str]) -> Iterator[str]:
    if held:
        yield f"{source} is open again but for {join_limited(sorted(held))}: another mirror's failover keeps that closed"


def _list_holding_mirrors(
    state_or_error: State | MirrorError, source_id: str, cluster: ClusterName, own_mirror: MirrorName | None
) -> Iterator[tuple[MirrorName, bool]]:
    """Mirrors that keep the cluster closed, as source or as unpromoted destination; is that certain?"""
    if isinstance(state_or_error, MirrorError):
        raise state_or_error
    for name in {parse_mirror_name(key) for key in state_or_error.unreadable} - {own_mirror, None}:
        state_or_error.require_readable(MirrorName(str(name)))
    for mirror in state_or_error.mirrors.values():
        if mirror.destination != cluster or mirror.name == own_mirror:
            continue
        if (
            mirror.source_id == source_id
            and (must_close := _must_source_stay_closed(state_or_error, mirror)) is not False
        ):
            yield mirror.name, must_close is True
        elif mirror.destination_id == source_id and mirror.desired is not DesiredState.STOPPED:
            yield mirror.name, True


def _must_source_stay_closed(state: State, mirror: Mirror) -> bool | None:
    pending_fence, run = state.pending_fences.get(mirror.name), state.active_run(mirror.name)
    if pending_fence is None and run is None:
        return False
    return must_stay_fenced(
        mirror, pending_fence, run, is_command_begun=run is not None and has_closed_source(state, run)
    )

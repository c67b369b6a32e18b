"""Calls fence commands under the mirror's ownership, and repairs calls that came too late.

A command knows no owner, and its caller may have slept. So the caller writes to the state before and after, which only
the owner can. A caller that lost the mirror makes the cluster as the new owner's state wants it. A topic stays closed
while another mirror's failover needs that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mirror_core.decide.shutting import keeps_shut
from mirror_core.decide.view import some
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state.keys import mirror_of
from mirror_core.state.link import Link, state_of_source, states_beside
from mirror_core.state.records import State
from mirror_core.sync.closing_commands import CommandFailed
from mirror_core.sync.closings import has_shut


def kept_closed(link: Link, state: State, topics: Collection[str]) -> frozenset[str]:
    """FenceCommandFailed where a cluster that may know does not answer: nothing may be opened then."""
    source, there = link.source.name, link.destination.name
    answers = ((there, state), *state_of_source(link), *states_beside(link))
    kept, unknown = kept_by(answers, link.mirror.source_id, (there, link.mirror.name), set(topics))
    if unknown:
        raise CommandFailed(
            f"cluster {source} is not opened: whether another mirror's failover keeps topics there closed is not known "
            f"({'; '.join(unknown)}). A cluster that never comes back has to leave mirrorbook.yaml"
        )
    return kept & set(topics)


def kept_by(
    answers: Iterable[tuple[ClusterName, State | MirrorError]],
    source_id: str,
    mine: tuple[ClusterName, MirrorName],
    topics: Collection[str] = (),
) -> tuple[frozenset[str], tuple[str, ...]]:
    """Held topics, and clusters that did not answer. `own`: destination and name of the asking mirror."""
    kept, unknown = set[str](), list[str]()
    for cluster, answer in answers:
        try:
            for mirror, sure in _kept(answer, source_id, cluster, mine[1] if cluster == mine[0] else None):
                theirs = {p.topic for p in answer.partitions.get(mirror, {})} if isinstance(answer, State) else set()
                kept |= theirs
                if not sure and theirs & set(topics):  # the failback ends, and nobody would open them then
                    unknown.append(f"{cluster}: a failback of mirror {mirror} is under way")
        except MirrorError as error:
            unknown.append(f"{cluster}: {error}")
    return frozenset(kept), tuple(sorted(unknown))


def stay_closed(source: ClusterName, kept: Collection[str]) -> Iterator[str]:
    if kept:
        yield f"{source} is open again but for {some(sorted(kept))}: another mirror's failover keeps that closed"


def _kept(
    answer: State | MirrorError, source_id: str, cluster: ClusterName, mine: MirrorName | None
) -> Iterator[tuple[MirrorName, bool]]:
    """Mirrors that keep the cluster closed, as source or as unpromoted destination; is that certain?"""
    if isinstance(answer, MirrorError):
        raise answer
    for name in {mirror_of(key) for key in answer.unreadable} - {mine, None}:
        answer.require(MirrorName(str(name)))
    for mirror in answer.mirrors.values():
        if mirror.destination != cluster or mirror.name == mine:
            continue
        if mirror.source_id == source_id and (closes := _closes(answer, mirror)) is not False:
            yield mirror.name, closes is True
        elif mirror.destination_id == source_id and mirror.desired is not Desired.STOPPED:
            yield mirror.name, True


def _closes(state: State, mirror: Mirror) -> bool | None:
    debt, run = state.debts.get(mirror.name), state.active_run(mirror.name)
    if debt is None and run is None:
        return False
    return keeps_shut(mirror, debt, run, begun=run is not None and has_shut(state, run))

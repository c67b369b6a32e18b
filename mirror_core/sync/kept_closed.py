"""Topics of a cluster that one mirror would have opened, and another mirror's failover keeps closed.

An equal denial of two mirrors is in both ledgers, and goes with the last of them. A command knows no such thing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mirror_core.decide.shutting import keeps_shut
from mirror_core.decide.view import some
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.state.keys import mirror_of
from mirror_core.state.link import Link, states_beside
from mirror_core.state.records import State
from mirror_core.sync.closing_commands import CommandFailed
from mirror_core.sync.closings import has_shut


def kept_closed(link: Link, state: State, topics: Collection[str]) -> frozenset[str]:
    """Of these topics of the mirror's source. `state`: of its destination. CommandFailed where a cluster that may know
    of such a failover has not told: nothing is to be opened then."""
    source, there = link.source.name, link.destination.name
    kept, unknown = kept_by(((there, state), *states_beside(link)), source, (there, link.mirror.name))
    if unknown:
        raise CommandFailed(
            f"cluster {source} is not opened: whether another mirror's failover keeps topics there closed is not known "
            f"({'; '.join(unknown)}). A cluster that never comes back has to leave mirrorbook.yaml"
        )
    return kept & set(topics)


def kept_by(
    answers: Iterable[tuple[ClusterName, State | MirrorError]],
    source: ClusterName,
    mine: tuple[ClusterName, MirrorName],
) -> tuple[frozenset[str], tuple[str, ...]]:
    """All topics of `source` that others than this mirror (its destination, its name) keep closed, by the states of
    these clusters; and which of them have not told, and why."""
    kept, unknown = set[str](), list[str]()
    for cluster, answer in answers:
        try:
            kept |= set(_kept(answer, source, cluster, mine[1] if cluster == mine[0] else None))
        except MirrorError as error:
            unknown.append(f"{cluster}: {error}")
    return frozenset(kept), tuple(sorted(unknown))


def stay_closed(source: ClusterName, kept: Collection[str]) -> Iterator[str]:
    """What people are told of topics that were not opened."""
    if kept:
        yield f"{source} is open again but for {some(sorted(kept))}: another mirror's failover keeps that closed"


def _kept(
    answer: State | MirrorError, source: ClusterName, cluster: ClusterName, mine: MirrorName | None
) -> Iterator[str]:
    """Topics that mirrors from `source` towards `cluster` keep closed, by its state; all of them but `mine`."""
    if isinstance(answer, MirrorError):
        raise answer
    for name in {mirror_of(key) for key in answer.unreadable} - {mine, None}:
        answer.require(MirrorName(str(name)))
    for mirror in answer.mirrors.values():
        towards = (mirror.source, mirror.destination) == (source, cluster)
        if towards and mirror.name != mine and _closes(answer, mirror):
            yield from (p.topic for p in answer.partitions.get(mirror.name, {}))


def _closes(state: State, mirror: Mirror) -> bool:
    """Whether its source is to be closed. One that is stopped, or that nobody moves, keeps nothing so."""
    debt, run = state.debts.get(mirror.name), state.active_run(mirror.name)
    if debt is None and run is None:
        return False
    return keeps_shut(mirror, debt, run, begun=run is not None and has_shut(state, run)) is not False

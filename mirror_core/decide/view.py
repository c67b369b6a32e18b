"""What is seen of both sides of a mirror before a decision is made. Values only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from mirror_core.model.acl import Acl
from mirror_core.model.groups import GroupsLeft, Uncommitted
from mirror_core.model.mirror import GroupsSeen, Lease, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.proof import Proof
from mirror_core.model.ruling import KAFKAS, Barred, Ruling
from mirror_core.model.run import Mode
from mirror_core.model.sighting import Heartbeat, Sighting
from mirror_core.model.standing import Debt

SHOWN: Final = 200
"""Partitions and groups listed one by one; the rest is in the totals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as one cluster describes it."""

    id: str
    partitions: int


class Few(NamedTuple):
    """A topic of which a partition has fewer replicas in sync than applications' writes need after promotion."""

    topic: str
    in_sync: int
    needed: int
    """`min.insync.replicas`, as promotion leaves it."""


class Hidden(NamedTuple):
    """Recorded topics that our principal may not DESCRIBE: the cluster does not tell whether it has them."""

    topics: frozenset[str] = frozenset()
    why: str = ""
    """With the grant that is missing."""


NOTHING_HIDDEN: Final = Hidden()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The source, seen a moment ago."""

    cluster_id: str
    topics: Mapping[str, Topic]
    """Topics that match the mirror's filters now."""
    stable_ends: Mapping[Partition, Offset]
    """Next offset that a read_committed consumer cannot read yet."""
    authorizer: bool
    transactions: tuple[str, ...]
    """Transactional ids with an open transaction on the mirror's topics."""
    groups: tuple[str, ...] = ()
    """Names of the consumer groups in scope."""
    other_groups: tuple[str, ...] = ()
    """Groups in scope that are not synced, each with its kind."""
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    """Committed offsets (next to be read) on the mirror's topics, of as many groups as there was time to ask."""
    grants: tuple[Acl, ...] = ()
    """Rights to change the mirror's topics that applications hold there."""
    groups_unread: int = 0
    """Of these, as many as there was no time to ask about."""
    leaderless: tuple[Partition, ...] = ()
    """Recorded partitions that nobody leads now: their ends are not known."""
    state_writers: tuple[str, ...] = ()
    """Principals beside ours who may write or delete the state topic there, or the one that is to be."""
    hidden: Hidden = NOTHING_HIDDEN
    reappeared: str = ""
    """What people are told of denials that were lifted and stand there again."""
    shuts_out: str = ""
    """Why a fence would shut out readers, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationView:
    """The destination, seen a moment ago."""

    cluster_id: str
    topics: Mapping[str, Topic]
    positions: Mapping[Partition, Offset]
    """Log ends: the next offset to copy."""
    authorizer: bool
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    rights: tuple[str, ...] = ()
    """What an approver should know of the rights that promotion gives."""
    names: Collection[str] = ()
    """All topics there."""
    joined: tuple[str, ...] = ()
    """Of these groups, the ones that have members there, living or not given up yet."""
    groups_unseen: bool = False
    """Not every broker could tell of its groups in time: nothing is known of any."""
    groups_unread: int = 0
    """There was no time to ask what so many have committed: nothing is known of these."""
    heartbeats: tuple[Heartbeat, ...] = ()
    """The newest one of each partition of the heartbeats' topic: who looks on the destination sees how far the copy
    has come in time."""
    leaderless: tuple[Partition, ...] = ()
    """As on the source."""
    few_in_sync: tuple[Few, ...] = ()
    state_writers: tuple[str, ...] = ()
    """As on the source."""
    hidden: Hidden = NOTHING_HIDDEN


@dataclass(frozen=True, slots=True)
class Unseen:
    """A side that did not answer in time, and why."""

    reason: str


class Forecast(NamedTuple):
    """What to expect, and by what."""

    seconds: float
    """Without writes."""
    basis: str
    steps: Mapping[str, float] = MappingProxyType({})
    """Seconds of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything that a plan is made from. No client, no clock."""

    mirror: Mirror
    mode: Mode
    statuses: Mapping[Partition, PartitionStatus]
    source: SourceView | Unseen
    destination: DestinationView | Unseen
    lease: Lease | None
    active_run: str | None
    """Id of the run that holds the mirror, if any."""
    grants: tuple[str, ...]
    """What an approval of the rights is bound to: what applications hold on the source and the final sync stages, of a
    planned failover; otherwise what is staged."""
    forecast: Forecast | None
    """How long applications will stand still, by the newest failover that went the same way."""
    now_ms: int
    """By the clock of the process that mirrors, as far as it is known; or else by this machine's."""
    hooks: Mapping[str, str] = field(default_factory=dict)
    """What is called when applications move, in words, by name."""
    hook_problems: tuple[str, ...] = ()
    """What would make them fail, as far as it can be seen now."""
    continues: str | None = None
    """Id of the planned run that an unplanned one would go on from, because its source has died."""
    conducted: str = ""
    """Who conducts that run and would lose it, in words; empty: nobody, as far as is known."""
    debt: Debt | None = None
    """What an earlier run has left to be paid."""
    drained: bool = False
    """That run had fenced and drained the source: nothing is missing."""
    sighting: Sighting | None = None
    """What the data plane last saw of the source; None: it never looked."""
    proof: Proof | None = None
    """How far both sides were compared; None: never."""
    strangers: tuple[str, ...] = ()
    """Users of applications that hold rights on the destination, or will by promotion, and that only the source knows;
    as far as both clusters tell."""
    groups: GroupsSeen | None = None
    """How old the groups' offsets on the destination are; None: nothing was synced."""
    groups_left: GroupsLeft | None = None
    """What the destination has not of the source's groups, as of the last look at them; None: nothing was synced."""
    given: tuple[Acl, ...] | None = None
    """Rights that promotion would give; None: not known, since the destination is unseen or has no authorizer."""
    unbacked: tuple[Acl, ...] = ()
    """Of those that are staged, the ones that nobody holds on the source now, as far as it is seen."""
    beside: tuple[tuple[Mirror, int], ...] = ()
    """Mirrors that carry topics of this one from its source to a third cluster, and how many, as far as is known."""
    command_problems: tuple[str, ...] = ()
    """The same of what closes and opens a cluster."""
    here: Ruling = KAFKAS
    """What mirrorbook.yaml says of the source's access rights."""
    there: Ruling = KAFKAS
    """The same of the destination's."""
    unwatched: str = ""
    """What people are told where nobody watches an old source that has to be; empty: nothing."""
    owner: str = ""
    """Whom to call; empty: nobody is named."""
    together: tuple[tuple[str, ...], ...] = ()
    """Topics that belong together: regular expressions, by group; none: all of the mirror's."""
    unmirrored: tuple[Partition, ...] = ()
    """Partitions that match the filters on the source as this look saw it, and that are not recorded."""
    left: frozenset[Partition] = frozenset()
    """Partitions that a person leaves behind in a planned failover, if nobody leads them on the source."""
    clocks_ahead_ms: Mapping[ClusterName, int] = field(default_factory=dict)
    """How far this machine's clock is ahead of a cluster's, by cluster; without those that do not tell theirs."""


def barred(view: View) -> Barred:
    """What keeps writers out of the source, as far as is known."""
    return view.here.barred(denials=not isinstance(view.source, SourceView) or view.source.authorizer)


def healthy(statuses: Mapping[Partition, PartitionStatus]) -> dict[Partition, PartitionStatus]:
    """Partitions that a failover drains and compares: all but those that failed, also when they are stopped already."""
    return {p: statuses[p] for p in sorted(statuses) if is_healthy(statuses[p])}


def is_healthy(status: PartitionStatus) -> bool:
    """Neither failed, nor stopped with a reason."""
    return status.state is not PartitionState.FAILED and status.reason is None


def lags_of(view: View) -> Iterator[tuple[Partition, int | None]]:
    """Source's readable end − position, in offsets; None where either is unknown now."""
    ends = view.source.stable_ends if isinstance(view.source, SourceView) else {}
    positions = view.destination.positions if isinstance(view.destination, DestinationView) else {}
    for partition in sorted(view.statuses):
        end, position = ends.get(partition), positions.get(partition)
        yield partition, None if end is None or position is None else end - position


def failed_of(view: View) -> list[Partition]:
    return sorted(p for p, status in view.statuses.items() if not is_healthy(status))


def without_copy(view: View) -> frozenset[Partition]:
    """Recorded partitions that the destination, which was seen, does not have: they were never made there, or are gone,
    or a topic that is not the mirror's has their name."""
    there = view.destination
    if not isinstance(there, DestinationView):
        return frozenset()
    ids = {name: topic.id for name, topic in there.topics.items()}
    lacking = (p for p, s in view.statuses.items() if ids.get(p.topic) != s.destination_topic_id)
    return frozenset(p for p in lacking if p.topic not in there.hidden.topics)


def uncommitted_of(view: View) -> list[Uncommitted]:
    """What could not be committed for groups on the destination, and as far as is seen is not there now either."""
    there = view.destination.committed if isinstance(view.destination, DestinationView) else {}
    has = {group: {str(partition) for partition in offsets} for group, offsets in there.items()}
    left = view.groups_left.uncommitted if view.groups_left else ()
    return [
        one
        for one in left
        if one.stands is not None
        or (one.partition not in has.get(one.group, ()) if one.partition else one.group not in has)
    ]


def some(items: Iterable[object], most: int = 10) -> str:
    """The first ones, and how many more."""
    listed = [str(item) for item in items]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more

"""A snapshot of both clusters and the mirror's state, from which plans are made. Values only."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    id: str
    partitions: int


class Few(NamedTuple):
    topic: str
    in_sync: int
    needed: int


class Hidden(NamedTuple):
    topics: frozenset[str] = frozenset()
    why: str = ""


NOTHING_HIDDEN: Final = Hidden()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    cluster_id: str
    topics: Mapping[str, Topic]
    stable_ends: Mapping[Partition, Offset]
    """Last stable offsets."""
    authorizer: bool
    transactions: tuple[str, ...]
    groups: tuple[str, ...] = ()
    other_groups: tuple[str, ...] = ()
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    grants: tuple[Acl, ...] = ()
    groups_unread: int = 0
    leaderless: tuple[Partition, ...] = ()
    state_writers: tuple[str, ...] = ()
    hidden: Hidden = NOTHING_HIDDEN
    reappeared: str = ""
    shuts_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationView:
    cluster_id: str
    topics: Mapping[str, Topic]
    positions: Mapping[Partition, Offset]
    """Log ends: the next offset to copy."""
    authorizer: bool
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    rights: tuple[str, ...] = ()
    names: Collection[str] = ()
    joined: tuple[str, ...] = ()
    """Groups with members there, possibly dead ones before their session timeout."""
    groups_unseen: bool = False
    groups_unread: int = 0
    heartbeats: tuple[Heartbeat, ...] = ()
    leaderless: tuple[Partition, ...] = ()
    few_in_sync: tuple[Few, ...] = ()
    state_writers: tuple[str, ...] = ()
    hidden: Hidden = NOTHING_HIDDEN


@dataclass(frozen=True, slots=True)
class Unseen:
    """A cluster that did not answer in time, and why."""

    reason: str


class Forecast(NamedTuple):
    seconds: float
    basis: str
    steps: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    mirror: Mirror
    mode: Mode
    statuses: Mapping[Partition, PartitionStatus]
    source: SourceView | Unseen
    destination: DestinationView | Unseen
    lease: Lease | None
    active_run: str | None
    grants: tuple[str, ...]
    """What an approval of rights is bound to: for a planned failover what applications hold on the source
    and the final sync stages, otherwise what is staged.
    """
    forecast: Forecast | None
    now_ms: int
    """By the clock of the process that mirrors, if known; else this machine's."""
    hooks: Mapping[str, str] = field(default_factory=dict)
    hook_problems: tuple[str, ...] = ()
    continues: str | None = None
    conducted: str = ""
    debt: Debt | None = None
    drained: bool = False
    sighting: Sighting | None = None
    proof: Proof | None = None
    strangers: tuple[str, ...] = ()
    groups: GroupsSeen | None = None
    groups_left: GroupsLeft | None = None
    given: tuple[Acl, ...] | None = None
    unbacked: tuple[Acl, ...] = ()
    beside: tuple[tuple[Mirror, int], ...] = ()
    command_problems: tuple[str, ...] = ()
    here: Ruling = KAFKAS
    there: Ruling = KAFKAS
    unwatched: str = ""
    owner: str = ""
    together: tuple[tuple[str, ...], ...] = ()
    unmirrored: tuple[Partition, ...] = ()
    left: frozenset[Partition] = frozenset()
    clocks_ahead_ms: Mapping[ClusterName, int] = field(default_factory=dict)
    """This machine's clock minus the cluster's; unknown ones are left out."""


def barred(view: View) -> Barred:
    return view.here.barred(denials=not isinstance(view.source, SourceView) or view.source.authorizer)


def healthy(statuses: Mapping[Partition, PartitionStatus]) -> dict[Partition, PartitionStatus]:
    """What a failover drains and compares: all but FAILED ones, also when stopped already."""
    return {p: statuses[p] for p in sorted(statuses) if is_healthy(statuses[p])}


def is_healthy(status: PartitionStatus) -> bool:
    """Neither FAILED nor stopped with a reason."""
    return status.state is not PartitionState.FAILED and status.reason is None


def lags_of(view: View) -> Iterator[tuple[Partition, int | None]]:
    """Source's last stable offset minus position; None where either is unknown."""
    ends = view.source.stable_ends if isinstance(view.source, SourceView) else {}
    positions = view.destination.positions if isinstance(view.destination, DestinationView) else {}
    for partition in sorted(view.statuses):
        end, position = ends.get(partition), positions.get(partition)
        yield partition, None if end is None or position is None else end - position


def failed_of(view: View) -> list[Partition]:
    return sorted(p for p, status in view.statuses.items() if not is_healthy(status))


def without_copy(view: View) -> frozenset[Partition]:
    there = view.destination
    if not isinstance(there, DestinationView):
        return frozenset()
    ids = {name: topic.id for name, topic in there.topics.items()}
    lacking = (p for p, s in view.statuses.items() if ids.get(p.topic) != s.destination_topic_id)
    return frozenset(p for p in lacking if p.topic not in there.hidden.topics)


def uncommitted_of(view: View) -> list[Uncommitted]:
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
    listed = [str(item) for item in items]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more

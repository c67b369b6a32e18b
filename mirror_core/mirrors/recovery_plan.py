"""What can be done about FAILED partitions, and its cost. Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mirror_core.decide.filters import topics_named
from mirror_core.decide.recovery import OWN_RECORDS, REMEDIES, Action, TopicNow, blockers, kind_now
from mirror_core.decide.verbs import held_by
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.group_batches import fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.sizes import log_sizes
from mirror_core.model.errors import HeldByRun, RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.state.lease import copier
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State
from mirror_core.sync.identity import check_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    status: PartitionStatus
    kind: FailureKind
    position: Offset | None
    """Destination's log end."""
    action: Action
    blockers: tuple[str, ...]
    """Why it is not done now."""

    @property
    def partition(self) -> Partition:
        return self.status.partition

    @property
    def lost(self) -> ParityRange | None:
        """From where both sides differ, or all."""
        start = self.status.failed_at if self.kind in OWN_RECORDS else Offset(0)
        if self.action is not Action.RECOPY or self.kind is FailureKind.GAP_LIMIT or self.position is None:
            return None
        return ParityRange(partition=self.partition, start=min(start or Offset(0), self.position), end=self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """In offsets: records at most."""

    topic: str
    destination_id: str | None
    partitions: int
    deleted: int
    deleted_bytes: int | None
    """Bytes of one replica; None when unknown."""
    copied: int
    copied_bytes: int | None
    groups: tuple[str, ...] | None
    """Groups that lose committed offsets; None when unknown."""
    joined: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    proposals: tuple[Proposal, ...]
    costs: tuple[Cost, ...]
    own_records: tuple[ParityRange, ...] = ()
    """In other partitions of recopied topics."""

    @property
    def lost(self) -> tuple[ParityRange, ...]:
        doomed = {p.partition.topic for p in self.agreed if p.action is Action.RECOPY}
        own = tuple(r for r in self.own_records if r.partition.topic in doomed)
        return (*(p.lost for p in self.agreed if p.lost is not None), *own)

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of actions, positions and topic ids."""
        lines = [
            f"{p.partition} {p.kind} {p.action} {p.position} {p.status.failed_at} {p.status.reason}"
            for p in self.agreed
        ]
        lines += [f"{cost.topic} {cost.destination_id}" for cost in self.costs]
        lines += [f"{r.partition} {r.start} {r.end}" for r in self.own_records]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def agreed(self) -> tuple[Proposal, ...]:
        return tuple(p for p in self.proposals if not p.blockers)


def survey(link: Link, state: State, expressions: Iterable[str] | None, action: Action | None) -> RecoveryPlan:
    """Without an action only retries are planned: deleting must be named.

    HeldByRun, or Unreachable when a cluster does not answer.
    """
    run = state.active_run(link.mirror.name)
    if run is not None:
        raise HeldByRun(f"mirror {link.mirror.name}: recover", [held_by(run, conducted(state, run))])
    chosen = None if expressions is None else topics_named(expressions)
    statuses = state.partitions.get(link.mirror.name, {})
    failed = [
        s
        for p, s in sorted(statuses.items())
        if s.state is PartitionState.FAILED and (chosen is None or p.topic in chosen)
    ]
    if not failed:
        return RecoveryPlan((), ())
    names = sorted({s.partition.topic for s in failed})
    with (
        ClusterClient(link.source, timeout_s=LIMITS.recovered_side_s) as source,
        ClusterClient(link.destination, timeout_s=LIMITS.recovered_side_s) as destination,
    ):
        check_identity(link, source, destination)
        there, here = source.metadata(names), destination.metadata(names)
        starts, ends = _offsets(source, there, Point.START), _offsets(destination, here, Point.LOG_END)
        now = {name: _topic_now(link, state, name, there, here) for name in names}
        living = copier(state, link.mirror.name)
        owner = living.owner if living else None
        proposals = tuple(
            _propose(link, s, now[s.partition.topic], ends.get(s.partition), action, owner) for s in failed
        )
        doomed = sorted({p.partition.topic for p in proposals if p.action is Action.RECOPY})
        source_ends = _offsets(source, there, Point.STABLE_END) if doomed else {}
        costs = tuple(_costs(source, destination, here, doomed, starts, ends, source_ends))
    proposed = {p.partition for p in proposals if p.action is Action.RECOPY}
    others = {p: end for p, end in ends.items() if p.topic in doomed and p not in proposed}
    copies = {p for p, s in statuses.items() if p.topic in now and _is_copy(s, now[p.topic])}
    return RecoveryPlan(proposals, costs, tuple(own_records(others, copies, source_ends)))


def own_records(
    ends: Mapping[Partition, Offset],
    copies: Collection[Partition],
    source_ends: Mapping[Partition, Offset],
) -> Iterator[ParityRange]:
    """Read `ends` before `source_ends`."""
    for partition, end in sorted(ends.items()):
        start = source_ends.get(partition, Offset(0)) if partition in copies else Offset(0)
        if end > start:
            yield ParityRange(partition=partition, start=start, end=end)


def _is_copy(status: PartitionStatus, topic: TopicNow) -> bool:
    ids = (status.source_topic_id, status.destination_topic_id)
    return ids == (topic.source_id, topic.destination_id)


def _offsets(client: ClusterClient, view: ClusterView, point: Point) -> dict[Partition, Offset]:
    wanted = [Partition(name, index) for name, topic in view.topics.items() for index in topic.partitions]
    return list_offsets(client, wanted, point) if wanted else {}


def _topic_now(link: Link, state: State, name: str, there: ClusterView, here: ClusterView) -> TopicNow:
    source, destination = there.topics.get(name), here.topics.get(name)
    owners = [
        mirror
        for mirror, statuses in state.partitions.items()
        for p, s in statuses.items()
        if mirror != link.mirror.name and destination and p.topic == name and s.destination_topic_id == destination.id
    ]
    mine = state.partitions.get(link.mirror.name, {})
    return TopicNow(
        name=name,
        source_id=source.id if source else None,
        hidden=name in there.denied | here.denied,
        destination_id=destination.id if destination else None,
        states=frozenset(s.state for p, s in mine.items() if p.topic == name),
        other_mirror=owners[0] if owners else None,
    )


def _propose(
    link: Link,
    status: PartitionStatus,
    topic: TopicNow,
    position: Offset | None,
    asked: Action | None,
    copier: str | None,
) -> Proposal:
    kind = kind_now(status, topic)
    remedy = REMEDIES[kind]
    action = asked or remedy.actions[0]
    reasons = list(blockers(action, topic, link.mirror, copier))
    if action not in remedy.actions:
        reasons = [f"{action} does not help: {remedy.happened}; --action {' or '.join(remedy.actions)}"]
    elif asked is None and action is not Action.RETRY:
        reasons.append(f"ask for it by name: --action {' or '.join(remedy.actions)}")
    return Proposal(status=status, kind=kind, position=position, action=action, blockers=tuple(reasons))


def _costs(
    source: ClusterClient,
    destination: ClusterClient,
    here: ClusterView,
    topics: list[str],
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
    source_ends: Mapping[Partition, Offset],
) -> Iterator[Cost]:
    if not topics:
        return
    own_starts = _offsets(destination, here, Point.START)
    sizes, source_sizes = log_sizes(destination, ends), log_sizes(source, source_ends)
    groups = _groups(destination, topics)
    for topic in topics:
        mine = [p for p in ends if p.topic == topic]
        theirs = [p for p in source_ends if p.topic == topic]
        found = None if groups is None else groups.get(topic, {})
        yield Cost(
            topic=topic,
            destination_id=here.topics[topic].id if topic in here.topics else None,
            partitions=len(theirs),
            deleted=sum(ends[p] - own_starts[p] for p in mine),
            deleted_bytes=_sum(sizes, mine),
            copied=sum(source_ends[p] - starts[p] for p in theirs),
            copied_bytes=_sum(source_sizes, theirs),
            groups=None if found is None else tuple(sorted(found)),
            joined=tuple(sorted(name for name, idle in (found or {}).items() if not idle)),
        )


def _sum(sizes: Mapping[Partition, int], partitions: list[Partition]) -> int | None:
    return sum(sizes[p] for p in partitions) if all(p in sizes for p in partitions) else None


def _groups(client: ClusterClient, topics: list[str]) -> dict[str, dict[str, bool]] | None:
    """Whether each group is idle, by topic; None when unknown."""
    found: dict[str, dict[str, bool]] = {}
    try:
        groups = {name: group for name, group in list_groups(client).items() if group.kind in OFFSET_KINDS}
        fetched = fetch_all(client, groups.values())
    except RemoteFault:
        return None
    if fetched.faults:
        return None
    for name, offsets in fetched.offsets.items():
        for partition in offsets.committed:
            if partition.topic in topics:
                found.setdefault(partition.topic, {})[name] = groups[name].idle
    return found

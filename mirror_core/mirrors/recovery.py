"""`mirror recover`: what can be done about FAILED partitions, what it would cost, and doing it.

A recopy is written down before anything is deleted: all partitions of the topic become FAILED, kind `recopying`, with
the id of the topic that is to go. So the data plane leaves them alone, everybody sees why, and whoever runs recover
again after a crash finds out how far it came: the topic is still there, or it is not. They are forgotten last, and
what is forgotten the next plan creates and copies like any new topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirror_core.decide.filters import topics_named
from mirror_core.decide.recovery import OWN_RECORDS, REMEDIES, Action, TopicNow, hindrances, kind_now
from mirror_core.kafka.client import ClusterClient, ClusterView
from mirror_core.kafka.groups import OFFSET_KINDS, fetch_offsets, list_groups
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.sizes import log_sizes
from mirror_core.kafka.topics import delete_topics
from mirror_core.mirrors.verbs import refuse_during_run
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.mirror import FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.model.parity import ParityRange
from mirror_core.parity.salvage import LocalSalvage
from mirror_core.state.lease import HeldLease, acquire, died_here, is_fresh, new_owner
from mirror_core.state.link import Link
from mirror_core.state.records import Forget, PartitionRecord, Record, State
from mirror_core.state.table import Event, after
from mirror_core.state.writer import StateWriter

_TIMEOUT_S: Final = 5.0
_TICK_S: Final = 0.2
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One FAILED partition, and what is to be done about it."""

    status: PartitionStatus
    kind: FailureKind
    """As it stands now."""
    position: Offset | None
    """The destination's log end; None when there is no log."""
    action: Action
    """What was asked for; the usual remedy, if nothing was."""
    hindrances: tuple[str, ...]
    """Why it is not done now; empty when it is."""

    @property
    def partition(self) -> Partition:
        return self.status.partition

    @property
    def lost(self) -> ParityRange | None:
        """Offsets that a recopy deletes and the source may not have: from where both sides differ, or all of them."""
        start = self.status.failed_at if self.kind in OWN_RECORDS else Offset(0)
        if self.action is not Action.RECOPY or self.kind is FailureKind.WORN_OUT or self.position is None:
            return None
        return ParityRange(partition=self.partition, start=min(start or Offset(0), self.position), end=self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a recopy deletes, and what it copies. Offsets are counted, so records are as many at most."""

    topic: str
    destination_id: str | None
    partitions: int
    deleted: int
    deleted_bytes: int | None
    """Of one replica; None: no broker tells."""
    copied: int
    copied_bytes: int | None
    groups: tuple[str, ...] | None
    """Whose committed offsets on the destination go with the topic; None when they could not be read."""
    joined: tuple[str, ...]
    """Those of them that have members there."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What `recover` would do, seen a moment ago."""

    proposals: tuple[Proposal, ...]
    prices: tuple[Price, ...]
    """Of each topic that would be copied anew."""

    @property
    def lost(self) -> tuple[ParityRange, ...]:
        """What the recopies that are done delete, and the source may not have."""
        return tuple(p.lost for p in self.agreed if p.lost is not None)

    @property
    def agreed(self) -> tuple[Proposal, ...]:
        """What is done once somebody agrees."""
        return tuple(p for p in self.proposals if not p.hindrances)


def survey(link: Link, state: State, expressions: Iterable[str] | None, action: Action | None) -> Survey:
    """Look at both clusters, and say what can be done about FAILED partitions of these topics (all, when None).

    Without an action only retries are done: what deletes or gives up something must be named. Raises Refused while a
    run holds the mirror, Unreachable when a cluster does not answer: what is not seen must not be decided on.
    """
    refuse_during_run(link, state, "recover")
    chosen = None if expressions is None else topics_named(expressions)
    statuses = state.partitions.get(link.mirror.name, {})
    failed = [
        s
        for p, s in sorted(statuses.items())
        if s.state is PartitionState.FAILED and (chosen is None or p.topic in chosen)
    ]
    if not failed:
        return Survey((), ())
    names = sorted({s.partition.topic for s in failed})
    with (
        ClusterClient(link.source, timeout_s=_TIMEOUT_S) as source,
        ClusterClient(link.destination, timeout_s=_TIMEOUT_S) as destination,
    ):
        there, here = source.metadata(names), destination.metadata(names)
        if there.cluster_id != link.mirror.source_id:
            reason = (
                f"cluster {source.name} is {there.cluster_id} now, and was {link.mirror.source_id}: correct its address"
            )
            raise Refused(f"mirror {link.mirror.name}: recover", [reason])
        starts, ends = _offsets(source, there, Point.START), _offsets(destination, here, Point.LOG_END)
        now = {name: _topic_now(link, state, name, there, here) for name in names}
        proposals = tuple(
            _propose(link, s, now[s.partition.topic], ends.get(s.partition), action, _copier(state, link.mirror.name))
            for s in failed
        )
        doomed = sorted({p.partition.topic for p in proposals if p.action is Action.RECOPY})
        prices = tuple(_prices(source, destination, there, here, doomed, starts, ends))
    return Survey(proposals, prices)


def salvage(link: Link, agreed: Survey, folder: Path, say: Say) -> None:
    """Save what recopies will delete and the source may not have; raises unless every record of it is there."""
    saved = LocalSalvage(link.config.path)(link.destination.name, agreed.lost, folder)
    say(f"{sum(saved.values())} record(s) of cluster {link.destination.name} saved to {folder}")


def carry_out(link: Link, writer: StateWriter, agreed: Survey, say: Say) -> None:
    """Do what was shown. Refused when what it speaks of has changed since; LostOwnership when a copier runs."""
    refuse_during_run(link, writer.state, "recover")
    known = writer.state.partitions.get(link.mirror.name, {})
    changed = [p.partition for p in agreed.agreed if known.get(p.partition) != p.status]
    if changed:
        reasons = [f"{partition} has changed since you were asked: look again" for partition in sorted(changed)]
        raise Refused(f"mirror {link.mirror.name}: recover", reasons)
    records: list[Record | Forget] = []
    for proposal in agreed.agreed:
        if proposal.action is Action.ACCEPT:
            records.append(Forget(PartitionRecord(link.mirror.name, proposal.status)))
        elif proposal.action is Action.RETRY:
            records.append(_retried(link.mirror.name, proposal.status))
    if records:
        writer.put(*records)
    doomed = {p.partition.topic for p in agreed.agreed if p.action is Action.RECOPY}
    if doomed:
        _recopy(link, writer, [price for price in agreed.prices if price.topic in doomed], agreed.lost, say)


# -- looking -------------------------------------------------------------------------------------------------------


def _copier(state: State, mirror: MirrorName) -> str | None:
    lease = state.leases.get(mirror)
    if lease is None or not is_fresh(lease, now_ms()) or died_here(lease.owner):
        return None
    return lease.owner


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
        hidden=name in there.denied,
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
    reasons = list(hindrances(action, topic, link.mirror, copier))
    if action not in remedy.actions:
        reasons = [f"{action} does not help: {remedy.happened}; --action {' or '.join(remedy.actions)}"]
    elif asked is None and action is not Action.RETRY:
        reasons.append(f"ask for it by name: --action {' or '.join(remedy.actions)}")
    return Proposal(status=status, kind=kind, position=position, action=action, hindrances=tuple(reasons))


def _prices(
    source: ClusterClient,
    destination: ClusterClient,
    there: ClusterView,
    here: ClusterView,
    topics: list[str],
    starts: Mapping[Partition, Offset],
    ends: Mapping[Partition, Offset],
) -> Iterator[Price]:
    if not topics:
        return
    source_ends = _offsets(source, there, Point.STABLE_END)
    own_starts = _offsets(destination, here, Point.START)
    sizes, source_sizes = log_sizes(destination, ends), log_sizes(source, source_ends)
    groups = _groups(destination, topics)
    for topic in topics:
        mine = [p for p in ends if p.topic == topic]
        theirs = [p for p in source_ends if p.topic == topic]
        found = None if groups is None else groups.get(topic, {})
        yield Price(
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
    """Groups with committed offsets by topic, and whether each is without members; None when that is not to be seen."""
    found: dict[str, dict[str, bool]] = {}
    try:
        for group in list_groups(client).values():
            if group.kind not in OFFSET_KINDS:
                continue
            for partition in fetch_offsets(client, group.id, group.coordinator).committed:
                if partition.topic in topics:
                    found.setdefault(partition.topic, {})[group.id] = group.idle
    except RemoteFault:
        return None
    return found


# -- doing ---------------------------------------------------------------------------------------------------------


def _retried(mirror: MirrorName, status: PartitionStatus) -> Record | Forget:
    """The ids stay, so that another topic of the same name is noticed; where nothing was copied there are none yet."""
    if not status.destination_topic_id:
        return Forget(PartitionRecord(mirror, status))
    state = after(status.state, Event.RECOVER)
    return PartitionRecord(mirror, replace(status, state=state, reason=None, failed_at=None, kind=None))


def _recopy(link: Link, writer: StateWriter, prices: list[Price], lost: tuple[ParityRange, ...], say: Say) -> None:
    """Delete and forget topics, one after the other, holding the lease so that nobody copies meanwhile."""
    lease = acquire(link.destination, link.mirror.name, new_owner())
    try:
        _outwait_writers(lease, say)
        with ClusterClient(link.destination) as destination:
            for price in prices:
                lease.beat()
                _refuse_if_grown(destination, price, lost)
                begin_recopy(link, writer, price)
                _delete(destination, price)
                writer.put(
                    *(Forget(PartitionRecord(link.mirror.name, s)) for s in _of(link, writer.state, price.topic))
                )
                say(f"{price.topic}: deleted on cluster {link.mirror.destination}; the next epoch copies it anew")
    finally:
        lease.release()


def begin_recopy(link: Link, writer: StateWriter, price: Price) -> None:
    """Write down that this topic is about to be deleted; from then on only `recover` goes on with it."""
    reason = (
        f"topic {price.topic} is being copied anew: it was about to be deleted on cluster {link.mirror.destination}; "
        f"`mirrorbook mirror recover {link.mirror.name} --topics {price.topic} --action recopy` finishes that"
    )
    writer.put(
        *(
            PartitionRecord(
                link.mirror.name,
                replace(
                    status,
                    state=PartitionState.FAILED
                    if status.state is PartitionState.FAILED
                    else after(status.state, Event.FAIL),
                    reason=reason,
                    failed_at=None,
                    kind=FailureKind.RECOPYING,
                ),
            )
            for status in _of(link, writer.state, price.topic)
        )
    )


def _delete(destination: ClusterClient, price: Price) -> None:
    """Delete the topic that was shown, and no other that has taken its name since."""
    present = destination.metadata([price.topic]).topics.get(price.topic)
    if present is None:
        return
    if present.id != price.destination_id:
        reason = f"it is another topic now (id {present.id}) than when you were asked: look again"
        raise Refused(f"topic {price.topic} on cluster {destination.name} was not deleted", [reason])
    delete_topics(destination, [price.topic])


def _refuse_if_grown(destination: ClusterClient, price: Price, lost: tuple[ParityRange, ...]) -> None:
    """Nothing goes that was not there when it was shown, and saved if somebody asked for that."""
    shown = {r.partition: r.end for r in lost if r.partition.topic == price.topic}
    present = destination.metadata([price.topic]).topics.get(price.topic)
    if not shown or present is None or present.id != price.destination_id:
        return  # gone, or refused by name when it is to be deleted
    now = list_offsets(destination, shown, Point.LOG_END)
    grown = [f"{p} has grown from {end} to {now[p]} since you were asked" for p, end in shown.items() if now[p] != end]
    if grown:
        raise Refused(f"topic {price.topic} on cluster {destination.name} was not deleted", grown)


def _outwait_writers(lease: HeldLease, say: Say) -> None:
    """Tasks of a driver that died may write until their own clock stops them."""
    until_ms = lease.lease.writers_until_ms
    if until_ms > now_ms():
        say(f"waiting {(until_ms - now_ms()) / 1000:.0f} s for tasks that may still write")
    while now_ms() < until_ms:
        lease.beat()
        time.sleep(_TICK_S)


def _of(link: Link, state: State, topic: str) -> list[PartitionStatus]:
    return [s for p, s in sorted(state.partitions.get(link.mirror.name, {}).items()) if p.topic == topic]

"""What a failover moves, fixed when its run begins.

Else topics that one response leaves out would be promoted without being fenced. Offline partitions that a person leaves
behind are promoted as the destination has them; a failback saves what only the source has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from mirror_core.decide.fence_state import has_failed_over
from mirror_core.decide.loss_bound import format_partition_loss
from mirror_core.decide.mirror_snapshot import (
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    can_lose,
    find_write_barrier,
    select_healthy,
)
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.figures import FigureItems, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import PartitionLoss
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionStatus, is_healthy
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, Partition
from mirror_core.model.run import RunMode

LEFT_BEHIND_FACT: Final = "left behind"


def has_moved(snapshot: MirrorSnapshot) -> bool:
    """Its destination is rightly ahead of its source."""
    return snapshot.mirror.desired is DesiredState.STOPPED and has_failed_over(snapshot.pending_fence)


def list_offline_partitions(snapshot: MirrorSnapshot) -> tuple[Partition, ...]:
    """A planned failover would have to drain them. FAILED ones are not copied anyway."""
    if snapshot.mode is not RunMode.PLANNED or not isinstance(snapshot.source, SourceSnapshot):
        return ()
    statuses = snapshot.statuses  # of tens of thousands mostly none is without a leader: only these are looked at
    return tuple(
        sorted(p for p in set(snapshot.source.offline_partitions) if p in statuses and is_healthy(statuses[p]))
    )


def list_left_behind(snapshot: MirrorSnapshot) -> tuple[Partition, ...]:
    return tuple(p for p in list_offline_partitions(snapshot) if p in snapshot.left_behind)


def find_never_complete(snapshot: MirrorSnapshot) -> dict[Partition, PartitionLoss]:
    """Copies that an unplanned failover would promote though only the source ever had all of their records."""
    if snapshot.mode is not RunMode.UNPLANNED or not can_lose(snapshot):
        return {}
    losses, gone_topics = snapshot.loss.partitions, find_gone_topics(snapshot)
    return {
        p: partition_loss
        for p, partition_loss in losses.items()
        if partition_loss.is_never_complete
        and p.topic not in gone_topics
        and not p.topic.startswith(HEARTBEAT_TOPIC_PREFIX)
    }


def list_leavable(snapshot: MirrorSnapshot) -> tuple[Partition, ...]:
    """What a person's confirmation leaves behind."""
    return tuple(find_never_complete(snapshot)) or list_offline_partitions(snapshot)


def explain_never_complete(snapshot: MirrorSnapshot, *, left_behind: bool) -> Iterator[Finding]:
    """`left_behind`: what a person has confirmed, as a whole; else what nobody has."""
    losses, mirror = find_never_complete(snapshot), snapshot.mirror
    if losses and snapshot.left_behind.issuperset(losses) is left_behind:
        rows = sorted(losses.items(), key=lambda row: (-(row[1].missing or 0), row[0]))
        yield Finding(
            "copy_never_complete",
            mirror.destination,
            source=mirror.source,
            mirror=mirror.name,
            left_behind=left_behind,
            count=len(rows),
            held=sum(partition_loss.position or 0 for _, partition_loss in rows),
            partitions=[f"{p} ({_format_held(partition_loss)})" for p, partition_loss in rows],
        )


def _format_held(partition_loss: PartitionLoss) -> str:
    end = partition_loss.observed_end
    return f"{partition_loss.position:,} of {'an unknown number' if end is None else f'{end:,}'}"


def explain_offline_refusals(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    offline, left_partitions, name = (
        list_offline_partitions(snapshot),
        list_left_behind(snapshot),
        snapshot.mirror.source,
    )
    if not_left := [p for p in offline if p not in snapshot.left_behind]:
        yield Finding(
            "source_offline",
            name,
            partitions=not_left,
            mirror=snapshot.mirror.name,
            may_leave_behind=not any(_explain_unsafe(snapshot, offline)),
        )
    if left_partitions:
        yield from _explain_unsafe(snapshot, left_partitions)


def _explain_unsafe(snapshot: MirrorSnapshot, offline: Collection[Partition]) -> Iterator[Finding]:
    mirror, destination, source = snapshot.mirror, snapshot.destination, snapshot.source
    if mirror.failback_run:
        yield Finding("left_behind_on_failback", mirror.source, partitions=offline, destination=mirror.destination)
    if find_write_barrier(snapshot) is WriteBarrier.NONE:
        yield Finding("left_behind_unfenced", mirror.source, partitions=offline)
    mirrored = [
        p for p in select_healthy(snapshot.statuses) if isinstance(source, SourceSnapshot) and p.topic in source.topics
    ]
    if set(mirrored) <= set(offline):
        yield Finding("source_all_offline", mirror.source)
    if (
        isinstance(destination, DestinationSnapshot) and snapshot.active_run is None
    ):  # a run waits for them, in its drain
        unknown = [p for p in offline if p not in destination.positions and p not in destination.offline_partitions]
        if unknown:
            yield Finding("left_behind_position_unknown", mirror.destination, partitions=unknown)


def warn_left_behind(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    if left_partitions := list_left_behind(snapshot):
        losses, mirror = snapshot.loss.partitions, snapshot.mirror
        yield Finding(
            "partitions_left_behind",
            mirror.source,
            count=len(left_partitions),
            destination=mirror.destination,
            partitions=[f"{p} ({format_partition_loss(losses[p])})" for p in left_partitions],
        )


def list_left_behind_figures(snapshot: MirrorSnapshot) -> FigureItems:
    if left_partitions := list_left_behind(snapshot):
        missing = _list_missing(snapshot, left_partitions)
        known_counts = [count for count in missing if count is not None]
        yield FigureKey.LEFT_BEHIND_PARTITIONS, len(left_partitions)
        yield FigureKey.LEFT_BEHIND_OFFSETS, sum(known_counts) if known_counts else None
        if len(known_counts) < len(missing):
            yield FigureKey.LEFT_BEHIND_UNKNOWN_PARTITIONS, len(missing) - len(known_counts)


def _list_missing(snapshot: MirrorSnapshot, left_partitions: Collection[Partition]) -> list[int | None]:
    losses = snapshot.loss.partitions if left_partitions else {}
    return [losses[p].missing for p in left_partitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicScope:
    name: str
    drained: tuple[int, ...]
    """Healthy, with a source: drained and compared."""
    as_is: tuple[int, ...]
    """Promoted with what they hold: FAILED, or the topic is gone from the source."""
    left_behind: tuple[int, ...] = ()
    """Healthy, but offline on the source and left behind by a person's confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverScope:
    """What is promoted is fenced on the source, whatever else can be done with it."""

    VERSION: ClassVar[int] = 1
    topics: tuple[TopicScope, ...] = ()

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(topic.name for topic in self.topics)

    @property
    def drained(self) -> tuple[Partition, ...]:
        return tuple(Partition(topic.name, index) for topic in self.topics for index in topic.drained)

    @property
    def left_behind(self) -> tuple[Partition, ...]:
        return tuple(Partition(topic.name, index) for topic in self.topics for index in topic.left_behind)

    @property
    def promoted(self) -> tuple[Partition, ...]:
        return tuple(
            Partition(topic.name, index)
            for topic in self.topics
            for index in sorted((*topic.drained, *topic.as_is, *topic.left_behind))
        )


EMPTY_SCOPE: Final = FailoverScope()


def build_scope(snapshot: MirrorSnapshot) -> FailoverScope:
    """A planned failover is refused where a healthy topic is lost."""
    healthy_partitions, left_partitions = select_healthy(snapshot.statuses), frozenset(list_left_behind(snapshot))
    by_topic: dict[str, list[Partition]] = {}
    for partition in sorted(snapshot.statuses):
        by_topic.setdefault(partition.topic, []).append(partition)
    left_out = find_lost_topics(snapshot) if snapshot.mode is RunMode.UNPLANNED else frozenset()
    source = snapshot.source
    existing_topics = (
        source.topics.keys() | source.hidden.topics if isinstance(source, SourceSnapshot) else by_topic.keys()
    )
    return FailoverScope(
        topics=tuple(
            TopicScope(
                name=name,
                drained=tuple(
                    p.index
                    for p in partitions
                    if p in healthy_partitions and name in existing_topics and p not in left_partitions
                ),
                as_is=tuple(p.index for p in partitions if p not in healthy_partitions or name not in existing_topics),
                left_behind=tuple(p.index for p in partitions if p in left_partitions),
            )
            for name, partitions in by_topic.items()
            if name not in left_out
        )
    )


def list_proved(snapshot: MirrorSnapshot) -> frozenset[Partition]:
    """What a run of this plan compares before it stops anybody; an unplanned one compares nothing."""
    return frozenset(build_scope(snapshot).drained if snapshot.mode is RunMode.PLANNED else ())


def find_gone_topics(snapshot: MirrorSnapshot) -> frozenset[str]:
    """What their copies hold is promoted: the source has nothing newer. Where the source is unseen: as was recorded."""
    topics = {p.topic for p in snapshot.statuses} - find_lost_topics(snapshot)
    if isinstance(snapshot.source, SourceSnapshot):
        return frozenset(topics - snapshot.source.topics.keys() - snapshot.source.hidden.topics)
    observation = snapshot.source_observation
    deleted = {p.topic for p, status in snapshot.statuses.items() if status.kind is FailureKind.GONE}
    return frozenset(topics & deleted - (observation.get_new_topic_ids().keys() if observation else frozenset()))


def find_lost_topics(snapshot: MirrorSnapshot) -> frozenset[str]:
    """The destination lacks them, has replaced them, or hides them from us: not to be promoted."""
    if not isinstance(snapshot.destination, DestinationSnapshot):
        return frozenset()
    ids: dict[str, set[str]] = {}
    for partition, status in snapshot.statuses.items():
        ids.setdefault(partition.topic, set()).add(status.destination_topic_id)
    topics = snapshot.destination.topics
    # Partitions that the destination would not add have no id; the others of their topic are there.
    return frozenset(
        name for name, topic_ids in ids.items() if name not in topics or topic_ids - {""} != {topics[name].id}
    )


def drain_led_again(scope: FailoverScope, led: Collection[Partition]) -> FailoverScope:
    return FailoverScope(
        topics=tuple(_drain_led_again(topic, {p.index for p in led if p.topic == topic.name}) for topic in scope.topics)
    )


def _drain_led_again(topic: TopicScope, led: Collection[int]) -> TopicScope:
    drained_again = [index for index in topic.left_behind if index in led]
    return replace(
        topic,
        drained=tuple(sorted((*topic.drained, *drained_again))),
        left_behind=tuple(index for index in topic.left_behind if index not in drained_again),
    )


def find_scope_changes(scope: FailoverScope, statuses: Mapping[Partition, PartitionStatus]) -> Iterator[str | Finding]:
    promoted = set(scope.promoted)
    yield from _format_changes(
        sorted(p for p in statuses if p not in promoted and p.topic in scope.topic_names), "was added"
    )
    yield from _format_changes(sorted({p.topic for p in statuses} - set(scope.topic_names)), "was added")
    yield from _format_changes([p for p in scope.drained if p not in statuses], "is not recorded any more")
    yield from map(explain_failed_since_plan, find_failed_since_plan(scope, statuses))


def find_failed_since_plan(
    scope: FailoverScope, statuses: Mapping[Partition, PartitionStatus]
) -> list[PartitionStatus]:
    healthy_partitions = select_healthy(statuses)
    return [statuses[p] for p in scope.drained if p in statuses and p not in healthy_partitions]


def explain_failed_since_plan(status: PartitionStatus) -> Finding:
    kind = status.kind or FailureKind.OTHER
    return Finding("failed_since_plan", status.partition, kind=kind, reason=status.reason or "")


def _format_changes(items: Iterable[object], change: str) -> Iterator[str]:
    yield from (f"{item} {change} since the plan was made" for item in items)

"""What a failover moves, fixed when its run begins; every later step goes by it and checks that it
covered it.

Otherwise each step would list topics anew, and what one response happens to leave out would be promoted without being
fenced, drained or compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from mirror_core.decide.leaderless import list_left_behind
from mirror_core.decide.view import DestinationSnapshot, MirrorSnapshot, SourceSnapshot, select_healthy
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.run import RunMode


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

    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 1
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


def find_lost_topics(snapshot: MirrorSnapshot) -> frozenset[str]:
    """Mirror topics that the destination lacks, has replaced, or hides from us: not to be promoted."""
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


def find_scope_changes(scope: FailoverScope, statuses: Mapping[Partition, PartitionStatus]) -> Iterator[str]:
    healthy_partitions, promoted = select_healthy(statuses), set(scope.promoted)
    yield from _format_changes(
        sorted(p for p in statuses if p not in promoted and p.topic in scope.topic_names), "was added"
    )
    yield from _format_changes(sorted({p.topic for p in statuses} - set(scope.topic_names)), "was added")
    yield from _format_changes([p for p in scope.drained if p not in statuses], "is not recorded any more")
    yield from _format_changes(
        [p for p in scope.drained if p in statuses and p not in healthy_partitions], "has FAILED"
    )


def _format_changes(items: Iterable[object], change: str) -> Iterator[str]:
    yield from (f"{item} {change} since the plan was made" for item in items)

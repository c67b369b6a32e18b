"""What a failover moves, fixed when its run begins; every later step goes by it and checks that it
covered it.

Otherwise each step would list topics anew, and what one response happens to leave out would be promoted without being
fenced, drained or compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from mirror_core.decide.leaderless import left_behind
from mirror_core.decide.view import DestinationView, SourceView, View, healthy
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Partition
from mirror_core.model.run import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicScope:
    name: str
    drained: tuple[int, ...]
    """Healthy, with a source: drained and compared."""
    as_is: tuple[int, ...]
    """Promoted with what they hold: FAILED, or the topic is gone from the source."""
    left: tuple[int, ...] = ()
    """Healthy, but offline on the source and left behind by a person's confirmation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is promoted is fenced on the source, whatever else can be done with it."""

    VERSION: ClassVar[int] = 2
    OLDEST: ClassVar[int] = 1
    topics: tuple[TopicScope, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(topic.name for topic in self.topics)

    @property
    def drained(self) -> tuple[Partition, ...]:
        return tuple(Partition(topic.name, index) for topic in self.topics for index in topic.drained)

    @property
    def left(self) -> tuple[Partition, ...]:
        return tuple(Partition(topic.name, index) for topic in self.topics for index in topic.left)

    @property
    def promoted(self) -> tuple[Partition, ...]:
        return tuple(
            Partition(topic.name, index)
            for topic in self.topics
            for index in sorted((*topic.drained, *topic.as_is, *topic.left))
        )


NOTHING: Final = Scope()


def scope_of(view: View) -> Scope:
    """A planned failover is refused where a healthy topic is lost."""
    good, left = healthy(view.statuses), frozenset(left_behind(view))
    by_topic: dict[str, list[Partition]] = {}
    for partition in sorted(view.statuses):
        by_topic.setdefault(partition.topic, []).append(partition)
    left_out = lost_topics(view) if view.mode is Mode.UNPLANNED else frozenset()
    source = view.source
    there = source.topics.keys() | source.hidden.topics if isinstance(source, SourceView) else by_topic.keys()
    return Scope(
        topics=tuple(
            TopicScope(
                name=name,
                drained=tuple(p.index for p in partitions if p in good and name in there and p not in left),
                as_is=tuple(p.index for p in partitions if p not in good or name not in there),
                left=tuple(p.index for p in partitions if p in left),
            )
            for name, partitions in by_topic.items()
            if name not in left_out
        )
    )


def lost_topics(view: View) -> frozenset[str]:
    """Mirror topics that the destination lacks, has replaced, or hides from us: not to be promoted."""
    if not isinstance(view.destination, DestinationView):
        return frozenset()
    ids: dict[str, set[str]] = {}
    for partition, status in view.statuses.items():
        ids.setdefault(partition.topic, set()).add(status.destination_topic_id)
    seen = view.destination.topics
    # Partitions that the destination would not add have no id; the others of their topic are there.
    return frozenset(name for name, known in ids.items() if name not in seen or known - {""} != {seen[name].id})


def led_again(scope: Scope, led: Collection[Partition]) -> Scope:
    return Scope(
        topics=tuple(_led_again(topic, {p.index for p in led if p.topic == topic.name}) for topic in scope.topics)
    )


def _led_again(topic: TopicScope, led: Collection[int]) -> TopicScope:
    back = [index for index in topic.left if index in led]
    return replace(
        topic,
        drained=tuple(sorted((*topic.drained, *back))),
        left=tuple(index for index in topic.left if index not in back),
    )


def strayed(scope: Scope, statuses: Mapping[Partition, PartitionStatus]) -> Iterator[str]:
    good, known = healthy(statuses), set(scope.promoted)
    yield from _each(sorted(p for p in statuses if p not in known and p.topic in scope.names), "was added")
    yield from _each(sorted({p.topic for p in statuses} - set(scope.names)), "was added")
    yield from _each([p for p in scope.drained if p not in statuses], "is not recorded any more")
    yield from _each([p for p in scope.drained if p in statuses and p not in good], "has FAILED")


def _each(items: Iterable[object], what: str) -> Iterator[str]:
    yield from (f"{item} {what} since the plan was made" for item in items)

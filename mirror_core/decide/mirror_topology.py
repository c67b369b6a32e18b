"""Circles of mirrors, and what a failback does to siblings, which mirror the old source elsewhere.

Mirrors form a circle only where one topic passes all their filters. The search goes upstream, only to clusters that
such a topic could come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mirror_core.decide.filters import build_topic_filter
from mirror_core.model.errors import BadRequest
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import ClusterName, MirrorName, Partition, format_reverse_name


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMirror:
    mirror: Mirror
    not_copied: frozenset[str] = frozenset()
    """They pass the filters: promoted, or refused."""

    def select(self, topics: Iterable[str]) -> frozenset[str]:
        try:
            chosen = build_topic_filter(self.mirror)
        except BadRequest:
            return frozenset()
        return frozenset(topic for topic in topics if topic in chosen and topic not in self.not_copied)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MirrorCircle:
    mirrors: tuple[MirrorName, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleSearch:
    circles: tuple[MirrorCircle, ...]
    not_asked: Mapping[str, ClusterName]


def list_inbound_mirrors(
    cluster_id: str,
    mirrors: Iterable[Mirror],
    partitions: Mapping[MirrorName, Mapping[Partition, PartitionStatus]],
    excluded: MirrorName,
) -> tuple[InboundMirror, ...]:
    running = (m for m in mirrors if m.destination_id == cluster_id and m.desired is not DesiredState.STOPPED)
    return tuple(
        InboundMirror(mirror=mirror, not_copied=_list_not_copied(partitions.get(mirror.name, {}).values()))
        for mirror in running
        if mirror.name != excluded
    )


def find_circles(mirror: Mirror, topics: Iterable[str], inbound: Mapping[str, Sequence[InboundMirror]]) -> CircleSearch:
    circles, not_asked = list[MirrorCircle](), dict[str, ClusterName]()
    carried = InboundMirror(mirror=mirror).select(topics)
    paths = [(mirror.source_id, mirror.source, carried, tuple[MirrorName, ...]())] if carried else []
    while paths:
        cluster_id, cluster, common, downstream = paths.pop()
        if cluster_id not in inbound:
            not_asked[cluster_id] = cluster
            continue
        for other in inbound[cluster_id]:
            upstream, shared = other.mirror, other.select(common)
            if not shared or upstream.name in downstream:
                continue
            chain = (upstream.name, *downstream)
            if upstream.source_id == mirror.destination_id:
                circles.append(MirrorCircle(mirrors=chain, topics=tuple(sorted(shared))))
            else:
                paths.append((upstream.source_id, upstream.source, shared, chain))
    return CircleSearch(circles=tuple(sorted(circles)), not_asked=not_asked)


def build_reverse_mirror(mirror: Mirror) -> Mirror:
    return replace(
        mirror,
        name=format_reverse_name(mirror.name),
        source=mirror.destination,
        destination=mirror.source,
        source_id=mirror.destination_id,
        destination_id=mirror.source_id,
    )


def explain_circles(mirror: Mirror, circles: Iterable[MirrorCircle]) -> Iterator[Finding]:
    for circle in circles:
        yield Finding(
            "mirror_circle", mirror.name, mirrors=circle.mirrors, topics=sorted(circle.topics), source=mirror.source
        )


def explain_topic_circle(mirror: Mirror, topic: str, circle: MirrorCircle) -> str:
    chain = " -> ".join(circle.mirrors)
    return (
        f"topic {topic} on cluster {mirror.source} is not copied to {mirror.destination}: mirror {chain} would bring "
        f"it back to {mirror.source}. Leave it out of one of the two (`mirrorbook mirror change`), or stop the other"
        " mirror"
    )


_NEVER_COPIED_KINDS: Final = frozenset({FailureKind.OCCUPIED, FailureKind.CIRCLE})


def _list_not_copied(statuses: Iterable[PartitionStatus]) -> frozenset[str]:
    copied, given_up_topics = set[str](), set[str]()
    for status in statuses:
        is_given_up = status.state is PartitionState.STOPPED or status.kind in _NEVER_COPIED_KINDS
        (given_up_topics if is_given_up else copied).add(status.partition.topic)
    return frozenset(given_up_topics - copied)


class ChangedTopics(NamedTuple):
    recreated: frozenset[str]
    truncated: frozenset[str]


def warn_sibling_mirrors(
    source: ClusterName, siblings: Collection[tuple[Mirror, frozenset[str]]], changed: ChangedTopics | None
) -> Iterator[Finding]:
    """`siblings`: with shared topics; `changed`: None while the old source is unseen."""
    for sibling, topics in siblings:
        name, destination, shared = sibling.name, sibling.destination, sorted(topics)
        if changed is None:
            yield Finding("sibling_mirror_unseen", name, topics=shared, source=source, destination=destination)
        else:
            yield Finding(
                "sibling_mirror_reached",
                name,
                topics=shared,
                source=source,
                destination=destination,
                recreated=sorted(topics & changed.recreated),
                truncated=sorted(topics & changed.truncated),
            )

"""Up to when the destination has everything of topics that belong together.

The last listing of topics limits that: later ones may hold anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirror_core.decide.loss_bound import find_uncopied
from mirror_core.decide.mirror_snapshot import (
    MirrorSnapshot,
    join_limited,
    list_known_positions,
)
from mirror_core.model.figures import FigureItems, FigureKey
from mirror_core.model.forecast import UncopiedReason
from mirror_core.model.mirror import FailureKind, PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, Offset, Partition, compile_name_pattern
from mirror_core.model.source_observation import SourceObservation

TopicPatternGroups = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyGroup:
    name: str
    complete_up_to_ms: int | None
    """Everything acknowledged before this moment is there, of every partition."""
    limiting_partitions: tuple[Partition, ...]
    limit: str
    """Partitions, with the reasons for those that have no copy; `no_topic`; or `topic_list`: its age."""


def list_completeness_figures(snapshot: MirrorSnapshot) -> FigureItems:
    positions = list_known_positions(snapshot)
    uncopied_reasons = {
        p: loss.uncopied_reason for p, loss in snapshot.loss.uncopied_losses.items() if loss.uncopied_reason
    }
    yield from list_group_completeness(
        find_consistency_groups(
            snapshot.consistency_groups, snapshot.statuses, snapshot.source_observation, positions, uncopied_reasons
        ),
        snapshot.observer_ahead_ms,
    )


def list_group_completeness(groups: Iterable[ConsistencyGroup], observer_ahead_ms: int) -> FigureItems:
    """By the brokers' clock: people look for records of that time."""
    by_name = {group.name: group for group in groups}
    times = {name: group.complete_up_to_ms for name, group in by_name.items()}
    yield (
        FigureKey.COMPLETE_UP_TO_MS,
        {name: None if at_ms is None else at_ms - observer_ahead_ms for name, at_ms in times.items()},
    )
    yield FigureKey.COMPLETE_LIMITED_BY, {name: group.limit for name, group in by_name.items()}


def find_consistency_groups(
    groups: TopicPatternGroups,
    statuses: Mapping[Partition, PartitionStatus],
    observation: SourceObservation | None,
    positions: Mapping[Partition, Offset],
    uncopied_reasons: Mapping[Partition, UncopiedReason] | None = None,
) -> Iterator[ConsistencyGroup]:
    uncopied_reasons = find_uncopied(statuses, observation) if uncopied_reasons is None else uncopied_reasons
    deleted = {p for p, status in statuses.items() if status.kind is FailureKind.GONE}
    complete_times = (
        dict(_list_complete_times(observation, positions, uncopied_reasons, deleted)) if observation else {}
    )
    listed_ms = observation.listed_ms if observation else None
    partitions = statuses.keys() | uncopied_reasons.keys()
    topics = sorted({p.topic for p in partitions if not p.topic.startswith(HEARTBEAT_TOPIC_PREFIX)})
    for expressions in groups or ((".*",),):
        patterns = [compile_name_pattern("together:", expression) for expression in expressions]
        chosen_topics = {topic for topic in topics if any(pattern.matches(topic) for pattern in patterns)}
        group_partitions = sorted(p for p in partitions if p.topic in chosen_topics)
        name = f"topics {', '.join(expressions)} together" if groups else "all topics together"
        unknown = tuple(p for p in group_partitions if p not in complete_times)
        complete_up_to_ms = (
            None
            if unknown or not group_partitions or listed_ms is None
            else min(listed_ms, *(complete_times[p] for p in group_partitions))
        )
        limiting = unknown or tuple(p for p in group_partitions if complete_times[p] == complete_up_to_ms)
        yield ConsistencyGroup(
            name=name,
            complete_up_to_ms=complete_up_to_ms,
            limiting_partitions=limiting,
            limit=_find_limit(group_partitions, limiting, uncopied_reasons),
        )


def _find_limit(
    group_partitions: Collection[Partition],
    limiting: Collection[Partition],
    uncopied_reasons: Mapping[Partition, UncopiedReason],
) -> str:
    if not group_partitions:
        return "no_topic"
    uncopied_first = sorted(limiting, key=lambda p: (p not in uncopied_reasons, p))
    names = (f"{p} ({uncopied_reasons[p]})" if p in uncopied_reasons else str(p) for p in uncopied_first)
    return join_limited(names) or "topic_list"


def _list_complete_times(
    observation: SourceObservation,
    positions: Mapping[Partition, Offset],
    uncopied_reasons: Collection[Partition],
    deleted: Collection[Partition],
) -> Iterator[tuple[Partition, int]]:
    """A position beyond an observed end contains what was there at that time. Empty logs and deleted topics lack
    nothing.
    """
    earlier_times, starts = observation.list_complete_times(positions), dict(observation.get_starts())
    for partition, observed in observation.get_ends():
        position = starts.get(partition) if partition in uncopied_reasons else positions.get(partition)
        if position is not None and position >= observed.end:
            is_final = partition in deleted and partition not in uncopied_reasons
            yield partition, observation.at_ms if is_final else observed.at_ms
        elif position is not None and partition in earlier_times and partition not in uncopied_reasons:
            yield partition, earlier_times[partition]

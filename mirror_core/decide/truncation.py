"""What of the old source must be discarded, how, and what each way costs.

A log can be cut at a batch end with no open transaction. One that ends inside a transaction never gets its marker: its
last stable offset stands still while the coordinator believes the transaction complete (a hanging transaction,
KIP-890). Where one begins others may be open, so the walk remembers the last batch end where none was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mirror_core.decide.failure_remedies import DIFFERING_KINDS
from mirror_core.decide.mirror_snapshot import ClusterTopic
from mirror_core.model.acl import Operation
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureItems, FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, Offset, Partition
from mirror_core.model.run import FailbackStrategy
from mirror_core.model.text import join_limited
from mirror_core.rights.required_acls import find_lacking_strategy_rights
from mirror_core.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader

REPLICA_STRATEGIES: Final = (FailbackStrategy.HANDOVER, FailbackStrategy.REPLICA)
TRUNCATING_STRATEGIES: Final = frozenset({FailbackStrategy.OFFLINE, *REPLICA_STRATEGIES})
MAX_COSTED_TOPICS: Final = 20
COSTED_STRATEGIES: Final = (FailbackStrategy.RECREATE, *REPLICA_STRATEGIES, FailbackStrategy.OFFLINE)
UNATTENDED_STRATEGIES: Final = (FailbackStrategy.HANDOVER, FailbackStrategy.RECREATE)
"""Need nobody at a broker. By bytes over the link, fewest first."""
MIN_KEPT_BYTES: Final = MappingProxyType({FailbackStrategy.HANDOVER: 14 << 20, FailbackStrategy.REPLICA: 33 << 20})
"""Bytes a log must have below its truncation point: a replica is parked about so far below it."""
_NO_TOPICS: Final[Mapping[str, ClusterTopic]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AllowedStrategies:
    everywhere: FailbackStrategy | None = None
    """None stands for the cheapest of `UNATTENDED_STRATEGIES`."""
    topics: Mapping[str, FailbackStrategy] = field(default_factory=lambda: MappingProxyType({}))

    def for_topic(self, topic: str) -> FailbackStrategy | None:
        """Heartbeats are small and ours: the general choice does not apply to them."""
        return self.topics.get(topic, None if topic.startswith(HEARTBEAT_TOPIC_PREFIX) else self.everywhere)

    @property
    def strategies(self) -> frozenset[FailbackStrategy]:
        return frozenset({*self.topics.values(), *([self.everywhere] if self.everywhere else [])})

    @classmethod
    def parse(cls, arguments: tuple[str, ...]) -> AllowedStrategies:
        everywhere: FailbackStrategy | None = None
        topics: dict[str, FailbackStrategy] = {}
        for argument in arguments:
            topic, separator, name = argument.rpartition("=")
            if name not in list(FailbackStrategy):
                raise BadRequest(
                    f"{argument!r}: strategies are {', '.join(FailbackStrategy)}; give STRATEGY or TOPIC=STRATEGY"
                )
            if (separator and topic in topics) or (not separator and everywhere is not None):
                raise BadRequest(f"{argument!r}: {topic or 'all topics'}: give one strategy only")
            if separator:
                topics[topic] = FailbackStrategy(name)
            else:
                everywhere = FailbackStrategy(name)
        return cls(everywhere, topics)

    def check_topics(self, known: Collection[str], mirror: str) -> None:
        """BadRequest for a topic that is not in `known`."""
        if unknown := sorted(self.topics.keys() - known):
            carried = join_limited(sorted(t for t in known if not t.startswith(HEARTBEAT_TOPIC_PREFIX))) or "none"
            raise BadRequest(
                f"--strategy: unknown topic {unknown[0]!r}: topics that mirror {mirror} carries: {carried}"
            )


@dataclass(frozen=True, slots=True)
class LogExtent:
    start: Offset
    end: Offset
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyFacts:
    old_source: str
    compacted: Set[str] = frozenset()
    tiered: Set[str] = frozenset()
    new_topics: Mapping[str, ClusterTopic] = field(default_factory=dict)
    broker_count: int | None = None
    cluster_rights: Collection[Operation] | None = None
    topic_rights: Mapping[str, Collection[Operation]] = field(default_factory=dict)


StrategyObstacles = Mapping[tuple[str, FailbackStrategy], str]
"""By topic and strategy: why it is impossible, or never chosen by itself. A code of `FigureKey.STRATEGY_OBSTACLES`."""


def find_truncation_point(status: PartitionStatus) -> Offset:
    """First offset from which the old source may differ from the new primary."""
    if not status.destination_topic_id:  # never added on the new primary: what is there now is not the mirror's
        return Offset(0)
    lmo = Offset(0) if status.lmo is None else status.lmo
    failed_at = status.failed_at if status.kind in DIFFERING_KINDS else None
    return min(offset for offset in (lmo, status.differs_at, failed_at) if offset is not None)


def is_truncation_point_unknown(status: PartitionStatus) -> bool:
    """The two sides differ below the LMO, and nobody has seen from where on."""
    return status.kind in DIFFERING_KINDS and status.failed_at is None and status.differs_at is None


def is_recreated(status: PartitionStatus, topics: Mapping[str, ClusterTopic]) -> bool:
    topic = topics.get(status.partition.topic)
    return topic is not None and topic.id != status.source_topic_id


def select_created(statuses: Mapping[Partition, PartitionStatus]) -> dict[Partition, PartitionStatus]:
    created_topics = {p.topic for p, s in statuses.items() if s.destination_topic_id}
    return {p: s for p, s in statuses.items() if p.topic in created_topics}


def find_divergent_tails(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, ClusterTopic],
    log_ends: Mapping[Partition, Offset],
) -> dict[Partition, tuple[Offset, Offset]]:
    """Nonempty [from, end) that the old source has beyond the truncation point.

    In a recreated topic, and in a partition that the mirror never recorded, everything is tail.
    """
    mirrored = {p.topic for p in statuses} & topics.keys()
    tail_ranges = {}
    for partition, end in sorted(log_ends.items()):
        if partition.topic not in mirrored:
            continue
        status = statuses.get(partition)
        start = Offset(0) if status is None or is_recreated(status, topics) else find_truncation_point(status)
        if end > start:
            tail_ranges[partition] = (start, end)
    return tail_ranges


def find_lost_beginnings(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, ClusterTopic],
    log_starts: Mapping[Partition, Offset],
) -> dict[Partition, tuple[Offset, Offset]]:
    """Nonempty [from, end) that only the old source has: the copy had lost it before it was promoted.

    Without recreated topics, where everything is tail.
    """
    return {
        p: (start, end)
        for p, start in sorted(log_starts.items())
        if p in statuses
        and (end := statuses[p].deleted_until) is not None
        and start < end
        and not is_recreated(statuses[p], topics)
    }


def find_wider_topics(
    topics: Mapping[str, ClusterTopic], new_topics: Mapping[str, ClusterTopic]
) -> dict[str, tuple[int, int]]:
    """More partitions on the old source than on the new primary, and both counts.

    Only a recreated topic can match; otherwise keys would map to other partitions after failback.
    """
    return {
        name: (topic.partitions, new_topics[name].partitions)
        for name, topic in sorted(topics.items())
        if name in new_topics and topic.partitions > new_topics[name].partitions
    }


def choose_strategies(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, ClusterTopic],
    log_ends: Mapping[Partition, Offset],
    allowed: AllowedStrategies,
    new_topics: Mapping[str, ClusterTopic] = _NO_TOPICS,
    obstacles: StrategyObstacles | None = None,
) -> dict[str, FailbackStrategy]:
    """`obstacles` None: unknown, so no strategy that can have any is chosen by itself."""
    divergent = {p.topic for p in find_divergent_tails(statuses, topics, log_ends)} | find_wider_topics(
        topics, new_topics
    ).keys()
    recreated = {p.topic for p, s in statuses.items() if is_recreated(s, topics)}
    strategies = {}
    for topic in sorted({p.topic for p in statuses}):
        if topic in recreated:
            strategies[topic] = FailbackStrategy.RECREATE
        elif topic in divergent:
            named = allowed.for_topic(topic)
            strategies[topic] = _choose_cheapest(topic, obstacles) if named in (None, FailbackStrategy.NONE) else named
        else:
            strategies[topic] = allowed.topics.get(topic, FailbackStrategy.NONE)
    return strategies


def _choose_cheapest(topic: str, obstacles: StrategyObstacles | None) -> FailbackStrategy:
    if obstacles is None:
        return FailbackStrategy.RECREATE
    return next(strategy for strategy in UNATTENDED_STRATEGIES if (topic, strategy) not in obstacles)


def find_obstacles(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, ClusterTopic],
    logs: Mapping[Partition, LogExtent],
    facts: StrategyFacts,
) -> StrategyObstacles:
    """For topics that need a strategy; of several obstacles the first. `recreate` has none."""
    tail_ranges = find_divergent_tails(statuses, topics, {p: log.end for p, log in logs.items()})
    topics_to_change = {p.topic for p in tail_ranges} | find_wider_topics(topics, facts.new_topics).keys()
    statuses_by_topic: dict[str, dict[Partition, PartitionStatus]] = {topic: {} for topic in topics_to_change}
    logs_by_topic: dict[str, dict[Partition, LogExtent]] = {topic: {} for topic in topics_to_change}
    for partition, status in statuses.items():
        if partition.topic in topics_to_change:
            statuses_by_topic[partition.topic][partition] = status
    for partition, log in logs.items():
        if partition.topic in topics_to_change:
            logs_by_topic[partition.topic][partition] = log
    obstacles = {}
    for topic in sorted(topics_to_change):
        topic_logs = logs_by_topic[topic]
        kept_bytes = [_estimate_bytes_before(topic_logs[p], tail_ranges[p][0]) for p in topic_logs if p in tail_ranges]
        for strategy in COSTED_STRATEGIES:
            objections = explain_objections(
                statuses_by_topic[topic],
                {topic: topics[topic]},
                topic_logs,
                AllowedStrategies(topics={topic: strategy}),
                facts,
            )
            code = next((finding.code for finding in objections), "") or _find_obstacle(
                topic, strategy, kept_bytes, facts
            )
            if code:
                obstacles[topic, strategy] = code
    return obstacles


def _find_obstacle(
    topic: str, strategy: FailbackStrategy, kept_bytes: Collection[int | None], facts: StrategyFacts
) -> str:
    if strategy is FailbackStrategy.RECREATE:
        return ""
    if any(find_lacking_strategy_rights({topic: strategy}, facts.cluster_rights or (), facts.topic_rights)):
        return "failback_rights_lacking"
    wanted_bytes = MIN_KEPT_BYTES.get(strategy, 0)
    if any(size is not None and size < wanted_bytes for size in kept_bytes):
        return "log_too_short"
    if strategy is FailbackStrategy.HANDOVER and None in kept_bytes:
        return "log_size_unknown"
    return ""


def explain_objections(
    statuses: Mapping[Partition, PartitionStatus],
    topics: Mapping[str, ClusterTopic],
    logs: Mapping[Partition, LogExtent],
    allowed: AllowedStrategies,
    facts: StrategyFacts,
) -> Iterator[Finding]:
    old_source = facts.old_source
    ends = {p: log.end for p, log in logs.items()}
    recreated = {p.topic for p, s in statuses.items() if is_recreated(s, topics)}
    divergent = {p.topic for p in find_divergent_tails(statuses, topics, ends)} | recreated
    wider_topics = find_wider_topics(topics, facts.new_topics)
    yield from _explain_width_objections(wider_topics, allowed, old_source, recreated)
    unallowed = sorted(t for t in divergent if allowed.for_topic(t) is FailbackStrategy.NONE)
    if unallowed:
        yield Finding("strategy_none_impossible", old_source, topics=unallowed)
    to_truncate = {t for t in divergent | set(allowed.topics) if allowed.for_topic(t) in TRUNCATING_STRATEGIES}
    if to_truncate & recreated:
        yield Finding("recreated_topics_not_truncatable", old_source, topics=sorted(to_truncate & recreated))
    yield from _explain_broker_objection(
        [t for t in sorted(to_truncate) if allowed.for_topic(t) in REPLICA_STRATEGIES], old_source, facts.broker_count
    )
    if compacted_topics := sorted(to_truncate & facts.compacted):
        yield Finding("compacted_topics_not_truncatable", old_source, topics=compacted_topics)
    if tiered_topics := sorted(to_truncate & facts.tiered):
        yield Finding("tiered_topics_not_truncatable", old_source, topics=tiered_topics)
    late_starts = [
        p
        for p in sorted(logs)
        if p.topic in to_truncate - recreated and p in statuses and logs[p].start >= find_truncation_point(statuses[p])
    ]
    late_with_records = [p for p in late_starts if logs[p].end > find_truncation_point(statuses[p])]
    unmirrored = [
        p for p, log in sorted(logs.items()) if p.topic in to_truncate - recreated and p not in statuses and log.end > 0
    ]
    if unmirrored:
        yield Finding("unmirrored_partitions_not_truncatable", old_source, partitions=unmirrored)
    if late_with_records:
        yield Finding("late_logs_not_truncatable", old_source, partitions=late_with_records)


def _explain_broker_objection(topics: Collection[str], old_source: str, broker_count: int | None) -> Iterator[Finding]:
    if topics and broker_count == 1:
        yield Finding("strategy_replica_impossible", old_source, topics=topics)


def list_possible_strategies(broker_count: int | None) -> tuple[FailbackStrategy, ...]:
    return tuple(s for s in COSTED_STRATEGIES if broker_count != 1 or s not in REPLICA_STRATEGIES)


def _explain_width_objections(
    widths: Mapping[str, tuple[int, int]], allowed: AllowedStrategies, old_source: str, recreated: Collection[str]
) -> Iterator[Finding]:
    for topic, (old_count, new_count) in widths.items():
        strategy = allowed.for_topic(topic)
        if strategy in TRUNCATING_STRATEGIES | {FailbackStrategy.NONE} and topic not in recreated:
            yield Finding(
                "topic_narrower",
                topic,
                strategy=strategy,
                old_count=old_count,
                new_count=new_count,
                source=old_source,
            )


def estimate_costs(
    statuses: Mapping[Partition, PartitionStatus],
    old: Mapping[Partition, LogExtent],
    new: Mapping[Partition, LogExtent],
    replicas: Mapping[str, int],
    strategies: Mapping[str, FailbackStrategy],
    broker_count: int | None = None,
) -> FigureItems:
    by_link: dict[str, int | None] = {}
    by_disk: dict[str, int | None] = {}
    divergent = [t for t, s in strategies.items() if s is not FailbackStrategy.NONE]
    new_sizes = _sum_by_topic((p.topic, log.size) for p, log in new.items())
    old_sizes = _sum_by_topic((p.topic, log.size) for p, log in old.items())
    tail_sizes = _sum_by_topic(
        (p.topic, _estimate_bytes_from(log, find_truncation_point(statuses[p])))
        for p, log in new.items()
        if p in statuses
    )
    for topic in sorted(divergent, key=lambda t: -(new_sizes.get(t) or 0))[:MAX_COSTED_TOPICS]:
        for strategy in list_possible_strategies(broker_count):
            link_bytes = (new_sizes if strategy is FailbackStrategy.RECREATE else tail_sizes).get(topic)
            replica_count = replicas.get(topic, 1)
            refilled_replicas = {
                FailbackStrategy.RECREATE: 0,
                FailbackStrategy.OFFLINE: replica_count - 1,
                FailbackStrategy.HANDOVER: max(1, replica_count - 1),  # the old leader keeps its log
                FailbackStrategy.REPLICA: replica_count,
            }[strategy]
            kept_bytes = old_sizes.get(topic) if refilled_replicas else 0
            disk_bytes = (
                None
                if link_bytes is None or kept_bytes is None
                else link_bytes * replica_count + kept_bytes * refilled_replicas
            )
            by_link[f"{topic} by {strategy}"] = link_bytes
            by_disk[f"{topic} by {strategy}"] = disk_bytes
    if by_link:
        yield FigureKey.LINK_BYTES, by_link
        yield FigureKey.DISK_BYTES, by_disk
        yield FigureKey.STRATEGY_RISKS, {strategy: strategy for strategy in list_possible_strategies(broker_count)}


def list_choice_figures(
    strategies: Mapping[str, FailbackStrategy], allowed: AllowedStrategies, obstacles: StrategyObstacles
) -> FigureItems:
    divergent = [t for t, s in sorted(strategies.items()) if s is not FailbackStrategy.NONE][:MAX_COSTED_TOPICS]
    if not divergent:
        return
    yield (
        FigureKey.STRATEGY_REASONS,
        {
            topic: "named"
            if allowed.for_topic(topic) is strategies[topic]
            else "only"
            if strategies[topic] is UNATTENDED_STRATEGIES[-1]
            else "cheapest"
            for topic in divergent
        },
    )
    listed = {f"{topic} by {s}": code for (topic, s), code in obstacles.items() if topic in divergent}
    if listed:
        yield FigureKey.STRATEGY_OBSTACLES, listed


def _estimate_bytes_from(log: LogExtent, start: Offset) -> int | None:
    if log.size is None:
        return None
    return round(log.size * max(0, log.end - max(start, log.start)) / max(1, log.end - log.start))


def _estimate_bytes_before(log: LogExtent, end: Offset) -> int | None:
    beyond = _estimate_bytes_from(log, end)
    return None if log.size is None or beyond is None else log.size - beyond


def _sum_by_topic(sizes: Iterable[tuple[str, int | None]]) -> dict[str, int | None]:
    totals: dict[str, int | None] = {}
    for topic, size in sizes:
        total = totals.get(topic, 0)
        totals[topic] = None if size is None or total is None else total + size
    return totals


NO_OPEN_TRANSACTIONS: Final[Mapping[int, Offset]] = MappingProxyType({})
"""Producer id to the offset of its open transaction's first batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoint:
    boundary: Offset
    offset: Offset | None
    """Here or below, where no transaction is open. None: start lower, one that began before the walk is open
    everywhere.
    """
    open_transactions: Mapping[int, Offset]


def find_cut_point(
    batches: Iterable[BatchHeader],
    target: Offset,
    start: Offset,
    open_before: Mapping[int, Offset] = NO_OPEN_TRANSACTIONS,
) -> CutPoint:
    """The highest place at or below `target` where the log can be cut.

    `batches`: the whole log from `start` on, with control batches and aborted data. `start`: a log end at or below the
    target; `open_before`: open transactions there.
    """
    boundary = start
    open_transactions = dict(open_before)
    safe_offset = None if open_transactions else start
    for header in batches:
        if header.next_offset > target:
            break
        boundary = Offset(header.next_offset)
        track_transactions(open_transactions, header)
        if not open_transactions:
            safe_offset = boundary
    return CutPoint(boundary=boundary, offset=safe_offset, open_transactions=open_transactions)


def track_transactions(open_transactions: dict[int, Offset], header: BatchHeader) -> None:
    if header.attributes & CONTROL:
        # An empty one is what compaction leaves of a transaction that is gone as a whole.
        if header.record_count:
            open_transactions.pop(header.producer_id, None)
    elif header.attributes & TRANSACTIONAL:
        open_transactions.setdefault(header.producer_id, Offset(header.base_offset))

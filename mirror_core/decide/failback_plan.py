"""Plans a failback: what becomes of what only the old source has.

"Old source" is the mirror's source, which applications left; "new primary" is its destination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_core.decide import mirror_topology
from mirror_core.decide.acl_plan import find_unheld_grants
from mirror_core.decide.failover_plan import UNSEEN_CLUSTER, PlanDecision, digest_items
from mirror_core.decide.fence_limits import explain_no_failback
from mirror_core.decide.fence_state import (
    count_offsets,
    find_fence_state,
    find_late_ranges,
    has_failed_over,
    warn_pending_fence,
)
from mirror_core.decide.mirror_snapshot import ClusterTopic, UnseenCluster
from mirror_core.decide.mirror_topology import MirrorCircle, build_reverse_mirror, explain_circles
from mirror_core.decide.steps import HoldingRun, plan_steps
from mirror_core.decide.truncation import (
    TRUNCATING_STRATEGIES,
    AllowedStrategies,
    LogExtent,
    StrategyFacts,
    StrategyObstacles,
    choose_strategies,
    estimate_costs,
    explain_objections,
    find_divergent_tails,
    find_lost_beginnings,
    find_obstacles,
    find_truncation_point,
    find_wider_topics,
    is_truncation_point_unknown,
    list_choice_figures,
)
from mirror_core.model.acl import Acl, Operation
from mirror_core.model.config_sections import KAFKA_AUTHORIZER, AuthorizerConfig
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureItems, FigureKey, Figures
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import NO_OFFSETS, Offset, Partition, format_reverse_name
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.run import FailbackStrategy, Plan, PlanFact, RunKind, RunMode
from mirror_core.model.text import format_count
from mirror_core.rights.required_acls import (
    LackingRight,
    explain_lacking_rights,
    find_lacking_strategy_rights,
    stops_run,
)


@dataclass(frozen=True, slots=True)
class UnmirroredTopic:
    partitions: int
    offsets: int | None = None
    log_ends: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldSource:
    cluster_id: str
    topics: Mapping[str, ClusterTopic]
    log_ends: Mapping[Partition, Offset]
    fenced: bool
    authorizer: bool = True
    fenced_by_command: bool = False
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    sizes: Mapping[Partition, int] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)
    broker_count: int | None = None
    compacted: frozenset[str] = frozenset()
    tiered: frozenset[str] = frozenset()
    """Like `compacted`, known for topics with a tail only."""
    demotion_problems: tuple[Finding, ...] = ()
    held_acls: frozenset[Acl] | None = None
    cluster_rights: frozenset[Operation] | None = None
    topic_rights: Mapping[str, frozenset[Operation]] = field(default_factory=dict)
    unmirrored_topics: Mapping[str, UnmirroredTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnendedTransaction:
    id: str
    partitions: frozenset[Partition]
    started_ms: int
    """The coordinator's clock."""
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrimary:
    cluster_id: str
    topics: Mapping[str, ClusterTopic]
    log_ends: Mapping[Partition, Offset]
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    sizes: Mapping[Partition, int] = field(default_factory=dict)
    demotion_problems: tuple[Finding, ...] = ()
    granted_acls: tuple[Acl, ...] = ()
    unmirrored_topics: Mapping[str, UnmirroredTopic] = field(default_factory=dict)
    transactions: tuple[UnendedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailbackSnapshot:
    mirror: Mirror
    statuses: Mapping[Partition, PartitionStatus]
    old_source: OldSource | UnseenCluster
    new_primary: NewPrimary | UnseenCluster
    active_runs: tuple[HoldingRun, ...]
    reverse_unknown: UnseenCluster | None = None
    allowed_strategies: AllowedStrategies = field(default_factory=AllowedStrategies)
    pending_fence: PendingFence | None = None
    never_copied_topics: tuple[str, ...] = ()
    watcher_alarms: tuple[Finding, ...] = ()
    owner: str = ""
    new_primary_authorizer: AuthorizerConfig = KAFKA_AUTHORIZER
    sibling_mirrors: tuple[tuple[Mirror, frozenset[str]], ...] = ()
    silent_clusters: tuple[str, ...] = ()
    circles: tuple[MirrorCircle, ...] = ()
    unchecked_circles: tuple[Finding, ...] = ()
    lacking_rights: tuple[LackingRight, ...] = ()
    """On the mirrored topics, in the roles that the clusters will have."""


def decide_failback(snapshot: FailbackSnapshot) -> PlanDecision:
    obstacles = _find_obstacles(snapshot)
    strategies = _choose_strategies(snapshot, obstacles)
    return PlanDecision(
        Plan(
            kind=RunKind.FAILBACK,
            mirror=snapshot.mirror.name,
            mode=RunMode.PLANNED,
            steps=plan_steps(RunKind.FAILBACK, snapshot.mirror),
            bound_facts=tuple(_list_bound_facts(snapshot)),
            warnings=(
                *_list_warnings(snapshot),
                *_warn_lost_beginnings(snapshot),
                *_warn_missing_beginnings(snapshot, strategies),
                *mirror_topology.warn_sibling_mirrors(
                    snapshot.mirror.source, snapshot.sibling_mirrors, _find_changed_topics(snapshot, strategies)
                ),
            ),
            unknown=tuple(_list_unknowns(snapshot)),
            figures=dict(_list_figures(snapshot, strategies, obstacles)),
            partitions=dict(_list_tail_figures(snapshot)),
            strategies=strategies,
            discarded=_count_discarded(snapshot),
        ),
        tuple(_list_reasons(snapshot, strategies)),
    )


def _build_facts(snapshot: FailbackSnapshot, old_source: OldSource) -> StrategyFacts:
    return StrategyFacts(
        old_source=snapshot.mirror.source,
        compacted=old_source.compacted,
        tiered=old_source.tiered,
        new_topics=_get_new_topics(snapshot),
        broker_count=old_source.broker_count,
        cluster_rights=old_source.cluster_rights,
        topic_rights=old_source.topic_rights,
    )


def _find_obstacles(snapshot: FailbackSnapshot) -> StrategyObstacles:
    if isinstance(snapshot.old_source, UnseenCluster):
        return {}
    old_source = snapshot.old_source
    return find_obstacles(
        snapshot.statuses, old_source.topics, _ClusterLogs(old_source), _build_facts(snapshot, old_source)
    )


def _choose_strategies(snapshot: FailbackSnapshot, obstacles: StrategyObstacles) -> dict[str, FailbackStrategy]:
    if isinstance(snapshot.old_source, UnseenCluster):
        return {}
    return choose_strategies(
        snapshot.statuses,
        snapshot.old_source.topics,
        snapshot.old_source.log_ends,
        snapshot.allowed_strategies,
        _get_new_topics(snapshot),
        obstacles,
    )


def _get_new_topics(snapshot: FailbackSnapshot) -> Mapping[str, ClusterTopic]:
    return {} if isinstance(snapshot.new_primary, UnseenCluster) else snapshot.new_primary.topics


class _ClusterLogs(Mapping[Partition, LogExtent]):
    """Built on access: there may be tens of thousands."""

    def __init__(self, cluster: OldSource | NewPrimary) -> None:
        self._cluster = cluster

    def __getitem__(self, partition: Partition) -> LogExtent:
        cluster = self._cluster
        return LogExtent(
            cluster.log_starts.get(partition, Offset(0)), cluster.log_ends[partition], cluster.sizes.get(partition)
        )

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._cluster.log_ends)

    def __len__(self) -> int:
        return len(self._cluster.log_ends)


def _list_bound_facts(snapshot: FailbackSnapshot) -> Iterator[PlanFact]:
    yield PlanFact("mirror", f"created {snapshot.mirror.created_ms}")
    yield PlanFact(
        "old source", snapshot.old_source.cluster_id if isinstance(snapshot.old_source, OldSource) else UNSEEN_CLUSTER
    )
    yield PlanFact(
        "new primary",
        snapshot.new_primary.cluster_id if isinstance(snapshot.new_primary, NewPrimary) else UNSEEN_CLUSTER,
    )
    yield PlanFact(
        "last mirrored offsets", digest_items(f"{p}={snapshot.statuses[p].lmo}" for p in sorted(snapshot.statuses))
    )
    if isinstance(snapshot.old_source, OldSource):
        # Behind the fence these do not move: what would be discarded is part of what is approved.
        yield build_tails_fact(_find_tails(snapshot, snapshot.old_source))
        yield PlanFact(
            "topic ids",
            digest_items(f"{name} {t.id} {t.partitions}" for name, t in sorted(snapshot.old_source.topics.items())),
        )
        yield PlanFact("fenced", str(snapshot.old_source.fenced))


def _list_reasons(snapshot: FailbackSnapshot, strategies: Mapping[str, FailbackStrategy]) -> Iterator[Finding]:
    mirror = snapshot.mirror
    for run in snapshot.active_runs:
        yield run.explain()
    if snapshot.reverse_unknown is not None:
        yield Finding("reverse_run_unknown", format_reverse_name(mirror.name), reason=snapshot.reverse_unknown.reason)
    if not snapshot.statuses:
        yield Finding("nothing_to_fail_back", mirror.name)
    not_stopped = sorted(p for p, s in snapshot.statuses.items() if s.state is not PartitionState.STOPPED)
    if not_stopped:
        yield Finding("not_failed_over", mirror.name, partitions=not_stopped)
    elif not snapshot.active_runs and not has_failed_over(snapshot.pending_fence):
        yield Finding(
            "stopped_without_failover",
            mirror.name,
            source=mirror.source,
            may_start=not mirror.failback_run,
        )
    if isinstance(snapshot.old_source, OldSource):
        old_source = snapshot.old_source
        yield from explain_objections(
            snapshot.statuses,
            old_source.topics,
            _ClusterLogs(old_source),
            snapshot.allowed_strategies,
            _build_facts(snapshot, old_source),
        )
        yield from (
            Finding("failback_rights_lacking", mirror.source, rights=missing)
            for missing in find_lacking_strategy_rights(strategies, old_source.cluster_rights, old_source.topic_rights)
        )
    yield from explain_lacking_rights(r for r in snapshot.lacking_rights if stops_run(r, RunMode.PLANNED))
    for name, recorded_id, cluster in (
        (mirror.source, mirror.source_id, snapshot.old_source),
        (mirror.destination, mirror.destination_id, snapshot.new_primary),
    ):
        if isinstance(cluster, UnseenCluster):
            yield Finding("cluster_unseen", name, reason=cluster.reason)
        elif cluster.cluster_id != recorded_id:
            yield Finding("cluster_replaced", name, cluster_id=cluster.cluster_id, recorded_id=recorded_id)
        else:
            yield from cluster.demotion_problems
    yield from explain_no_failback(mirror, snapshot.new_primary_authorizer)
    yield from explain_circles(build_reverse_mirror(mirror), snapshot.circles)
    if isinstance(snapshot.new_primary, NewPrimary):
        yield from _list_new_primary_reasons(snapshot, snapshot.new_primary)


def _list_new_primary_reasons(snapshot: FailbackSnapshot, new_primary: NewPrimary) -> Iterator[Finding]:
    name = snapshot.mirror.destination
    recorded_ids: dict[str, set[str]] = {}
    for partition, status in snapshot.statuses.items():
        if status.destination_topic_id:  # otherwise it could not be added there
            recorded_ids.setdefault(partition.topic, set()).add(status.destination_topic_id)
    for topic in _find_conflicting_topics(snapshot, new_primary):
        yield Finding("topic_on_both_sides", topic, destination=name, source=snapshot.mirror.source)
    for topic, ids in sorted(recorded_ids.items()):
        if topic not in new_primary.topics:
            yield Finding("failback_topic_gone", topic, destination=name)
        elif ids != {new_primary.topics[topic].id}:
            yield Finding("failback_topic_recreated", topic, destination=name)
    truncated = sorted(
        p for p, s in snapshot.statuses.items() if s.lmo is not None and new_primary.log_ends.get(p, s.lmo) < s.lmo
    )
    if truncated:
        yield Finding("new_primary_truncated", name, partitions=truncated)


def _find_conflicting_topics(snapshot: FailbackSnapshot, new_primary: NewPrimary) -> list[str]:
    old_topics = {} if isinstance(snapshot.old_source, UnseenCluster) else snapshot.old_source.unmirrored_topics
    conflicts = []
    for topic in sorted(new_primary.unmirrored_topics):
        old_topic = old_topics.get(topic)
        is_usable = (
            old_topic
            and old_topic.log_ends == 0
            and old_topic.partitions <= new_primary.unmirrored_topics[topic].partitions
        )
        if topic in snapshot.never_copied_topics or (old_topic and not is_usable):
            conflicts.append(topic)
    return conflicts


def _list_staying_topics(snapshot: FailbackSnapshot) -> list[str]:
    old_topics = {} if isinstance(snapshot.old_source, UnseenCluster) else snapshot.old_source.unmirrored_topics
    topics = sorted(
        {*snapshot.never_copied_topics, *old_topics}
        - ({} if isinstance(snapshot.new_primary, UnseenCluster) else snapshot.new_primary.unmirrored_topics).keys()
    )
    return [
        topic if topic not in old_topics else f"{topic} ({_format_offset_count(old_topics[topic].offsets)})"
        for topic in topics
    ]


def _format_offset_count(count: int | None) -> str:
    return "an unknown number of offsets" if count is None else format_count(count, "offset")


def _list_warnings(snapshot: FailbackSnapshot) -> Iterator[Finding]:
    mirror, old_source, source = snapshot.mirror, snapshot.old_source, snapshot.mirror.source
    if staying := _list_staying_topics(snapshot):
        yield Finding("topics_stay", source, topics=staying)
    yield from snapshot.watcher_alarms
    yield from explain_lacking_rights(r for r in snapshot.lacking_rights if not stops_run(r, RunMode.PLANNED))
    if isinstance(snapshot.new_primary, NewPrimary):
        yield from _warn_transactions(mirror, snapshot.new_primary.transactions)
    if isinstance(old_source, UnseenCluster):
        return
    yield from warn_pending_fence(snapshot.pending_fence, [run.id for run in snapshot.active_runs])
    if old_source.fenced_by_command:
        yield Finding("old_source_closed_by_command", source)
    elif not old_source.authorizer:
        yield Finding("old_source_unfenceable", source)
    elif not old_source.fenced:
        yield Finding("old_source_unfenced", source)
    if uncompared := _list_uncompared(snapshot, old_source):
        yield Finding("difference_unlocated", source, destination=mirror.destination, partitions=uncompared)
    divergent_tails = list(_find_tails(snapshot, old_source).items())
    for partition, (start, end) in divergent_tails[:MAX_RECORDED_NAMES]:
        is_mirrored = partition in snapshot.statuses
        yield Finding("tail_discarded", partition, source=source, first=start, last=end - 1, mirrored=is_mirrored)
    if (more := len(divergent_tails) - MAX_RECORDED_NAMES) > 0:
        yield Finding("more_tails_discarded", source, count=more)
    wider_topics = find_wider_topics(old_source.topics, _get_new_topics(snapshot))
    for topic, (old_count, new_count) in wider_topics.items():
        yield Finding(
            "topic_wider",
            topic,
            source=source,
            old_count=old_count,
            destination=mirror.destination,
            new_count=new_count,
        )
    yield from _warn_unheld_grants(snapshot, old_source)
    if missing_topics := sorted({p.topic for p in snapshot.statuses} - set(old_source.topics)):
        yield Finding("topics_created_at_home", source, topics=missing_topics)


def _warn_transactions(mirror: Mirror, transactions: Sequence[UnendedTransaction]) -> Iterator[Finding]:
    oldest_first = sorted(transactions, key=lambda transaction: transaction.started_ms)
    for transaction in oldest_first[:MAX_RECORDED_NAMES]:
        yield Finding(
            "failback_transaction_open",
            transaction.id,
            cluster=mirror.destination,
            partitions=sorted(transaction.partitions),
            started_ms=transaction.started_ms,
            timeout_s=transaction.timeout_s,
        )
    if (more := len(transactions) - MAX_RECORDED_NAMES) > 0:
        yield Finding("more_failback_transactions_open", mirror.destination, count=more)


def _warn_lost_beginnings(snapshot: FailbackSnapshot) -> Iterator[Finding]:
    old_source, mirror = snapshot.old_source, snapshot.mirror
    if isinstance(old_source, UnseenCluster):
        return
    if beginnings := find_lost_beginnings(snapshot.statuses, old_source.topics, old_source.log_starts):
        listed = [f"{p} [{start}, {end})" for p, (start, end) in beginnings.items()]
        yield Finding("beginnings_discarded", mirror.source, destination=mirror.destination, partitions=listed)


def _warn_missing_beginnings(
    snapshot: FailbackSnapshot, strategies: Mapping[str, FailbackStrategy]
) -> Iterator[Finding]:
    """They were held, or the old source's retention has deleted them since."""
    old_source, new_primary, mirror = snapshot.old_source, snapshot.new_primary, snapshot.mirror
    if isinstance(old_source, UnseenCluster) or isinstance(new_primary, UnseenCluster):
        return
    later_starts = [
        f"{p} (from {new_primary.log_starts[p]} on, there from {old_start} on)"
        for p, old_start in sorted(old_source.log_starts.items())
        if strategies.get(p.topic) is not FailbackStrategy.RECREATE
        and new_primary.log_starts.get(p, old_start) < old_start
    ]
    if later_starts:
        yield Finding("beginnings_missing", mirror.destination, source=mirror.source, partitions=later_starts)


def _warn_unheld_grants(snapshot: FailbackSnapshot, old_source: OldSource) -> Iterator[Finding]:
    granted = () if isinstance(snapshot.new_primary, UnseenCluster) else snapshot.new_primary.granted_acls
    if old_source.held_acls is not None and (unheld_grants := find_unheld_grants(granted, old_source.held_acls)):
        mirror = snapshot.mirror
        yield Finding("grants_unheld", mirror.source, destination=mirror.destination, grants=unheld_grants)


def _find_changed_topics(
    snapshot: FailbackSnapshot, strategies: Mapping[str, FailbackStrategy]
) -> mirror_topology.ChangedTopics | None:
    if isinstance(snapshot.old_source, UnseenCluster):
        return None
    missing_topics = strategies.keys() - snapshot.old_source.topics.keys()
    return mirror_topology.ChangedTopics(
        recreated=frozenset(
            missing_topics | {topic for topic, strategy in strategies.items() if strategy is FailbackStrategy.RECREATE}
        ),
        truncated=frozenset(topic for topic, strategy in strategies.items() if strategy in TRUNCATING_STRATEGIES),
    )


def _list_unknowns(snapshot: FailbackSnapshot) -> Iterator[Finding]:
    yield from snapshot.unchecked_circles
    if snapshot.silent_clusters:
        yield Finding("sibling_mirrors_unknown", snapshot.mirror.source, clusters=snapshot.silent_clusters)
    if isinstance(snapshot.old_source, UnseenCluster):
        yield Finding("old_source_facts_unknown", snapshot.mirror.source)
    if isinstance(snapshot.new_primary, UnseenCluster):
        yield Finding("new_primary_facts_unknown", snapshot.mirror.destination)


def _list_figures(
    snapshot: FailbackSnapshot, strategies: Mapping[str, FailbackStrategy], obstacles: StrategyObstacles
) -> FigureItems:
    if snapshot.owner:
        yield FigureKey.OWNER, snapshot.owner
    if fence := snapshot.pending_fence:
        yield FigureKey.FENCE_STATE, find_fence_state(fence)
        yield FigureKey.FENCE_SINCE_MS, fence.since_ms if fence.applied_at_ms is None else fence.applied_at_ms
        if fence.by_command:
            yield FigureKey.FENCE_BY_COMMAND, True
        trouble = fence.find_trouble(is_answering=isinstance(snapshot.old_source, OldSource))
        if trouble is not None:
            yield FigureKey.FENCE_PROBLEM, str(trouble)
        if fence.log_ends != NO_OFFSETS:
            late_ranges = find_late_ranges(fence, snapshot.statuses)
            split = fence.split_late_ranges(late_ranges)
            yield FigureKey.ACCEPTED_BEFORE_FENCE_OFFSETS, count_offsets(late_ranges)
            yield FigureKey.TAKEN_SINCE_FAILOVER_OFFSETS, None if split.unknown else count_offsets(split.since)
    yield FigureKey.PARTITIONS, len(snapshot.statuses)
    yield FigureKey.DISCARDED_OFFSETS, _count_discarded(snapshot)
    if isinstance(snapshot.old_source, OldSource):
        unmirrored = {
            str(p): end - start
            for p, (start, end) in _find_tails(snapshot, snapshot.old_source).items()
            if p not in snapshot.statuses
        }
        yield FigureKey.UNCOPIED_PARTITIONS, len(unmirrored)
        if unmirrored:
            yield FigureKey.UNCOPIED_OFFSETS, sum(unmirrored.values())
            yield FigureKey.UNCOPIED_SIZES, dict(list(unmirrored.items())[:MAX_RECORDED_NAMES])
    yield from list_choice_figures(strategies, snapshot.allowed_strategies, obstacles)
    if isinstance(snapshot.old_source, UnseenCluster) or isinstance(snapshot.new_primary, UnseenCluster):
        yield FigureKey.OFFSETS_TO_COPY, None
        return
    offsets_to_copy: int = sum(end for p, end in snapshot.new_primary.log_ends.items() if p not in snapshot.statuses)
    for partition, status in snapshot.statuses.items():
        end = snapshot.new_primary.log_ends.get(partition, Offset(0))
        is_copied_anew = (
            strategies.get(partition.topic) is FailbackStrategy.RECREATE
            or partition.topic not in snapshot.old_source.topics
        )
        kept_end = (
            Offset(0)
            if is_copied_anew
            else min(snapshot.old_source.log_ends.get(partition, Offset(0)), find_truncation_point(status))
        )
        offsets_to_copy += max(0, end - kept_end)
    yield FigureKey.OFFSETS_TO_COPY, offsets_to_copy
    yield from _list_recreation_figures(snapshot.new_primary, strategies)
    yield from estimate_costs(
        snapshot.statuses,
        _ClusterLogs(snapshot.old_source),
        _ClusterLogs(snapshot.new_primary),
        snapshot.old_source.replicas,
        strategies,
        snapshot.old_source.broker_count,
    )


def _list_recreation_figures(new_primary: NewPrimary, strategies: Mapping[str, FailbackStrategy]) -> FigureItems:
    recreated = {topic for topic, strategy in strategies.items() if strategy is FailbackStrategy.RECREATE}
    if not recreated:
        return
    logs = [log for p, log in _ClusterLogs(new_primary).items() if p.topic in recreated]
    sizes = [log.size for log in logs if log.size is not None]
    yield FigureKey.RECREATED_OFFSETS, sum(log.end - log.start for log in logs)
    yield FigureKey.RECREATED_BYTES, sum(sizes) if len(sizes) == len(logs) else None


def _list_tail_figures(snapshot: FailbackSnapshot) -> Iterator[tuple[str, Figures]]:
    if isinstance(snapshot.old_source, OldSource):
        for partition, (start, end) in list(_find_tails(snapshot, snapshot.old_source).items())[:MAX_RECORDED_NAMES]:
            yield (
                str(partition),
                {
                    FigureKey.DISCARDED_OFFSETS: end - start,
                    FigureKey.DISCARDED_FROM: start,
                    FigureKey.DISCARDED_BEFORE: end,
                },
            )


def _list_uncompared(snapshot: FailbackSnapshot, old_source: OldSource) -> list[Partition]:
    """Only step salvage finds what is discarded of these partitions."""
    return sorted(
        p
        for p, status in snapshot.statuses.items()
        if old_source.log_ends.get(p) and is_truncation_point_unknown(status)
    )


def _count_discarded(snapshot: FailbackSnapshot) -> int | None:
    old_source = snapshot.old_source
    if isinstance(old_source, UnseenCluster) or _list_uncompared(snapshot, old_source):
        return None
    beginnings = find_lost_beginnings(snapshot.statuses, old_source.topics, old_source.log_starts)
    return sum(end - start for start, end in (*_find_tails(snapshot, old_source).values(), *beginnings.values()))


def build_tails_fact(tail_ranges: Mapping[Partition, tuple[Offset, Offset]]) -> PlanFact:
    """Binds an approval to what is discarded; the run checks it again before it saves anything."""
    return PlanFact(
        "divergent tails", digest_items(f"{p} [{start}, {end})" for p, (start, end) in sorted(tail_ranges.items()))
    )


def find_written_since(
    reverse_statuses: Mapping[Partition, PartitionStatus], ends: Mapping[Partition, Offset]
) -> dict[Partition, str]:
    """New-primary partitions written after applications left, and the offsets.

    `reverse_statuses`: of the reverse mirror. Partitions that were FAILED then stay FAILED and are skipped. `ends`: of
    logs that exist.
    """
    return {
        p: f"from {s.lmo} to {ends[p]}"
        for p, s in reverse_statuses.items()
        if not s.reason and ends.get(p, s.lmo) != s.lmo
    }


def _find_tails(snapshot: FailbackSnapshot, old_source: OldSource) -> dict[Partition, tuple[Offset, Offset]]:
    return find_divergent_tails(snapshot.statuses, old_source.topics, old_source.log_ends)

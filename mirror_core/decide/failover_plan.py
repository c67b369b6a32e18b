"""From a snapshot to a failover plan, or the reasons against it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from mirror_core.decide.clock_skew import find_destination_clock_behind
from mirror_core.decide.command_rules import explain_preparing
from mirror_core.decide.failover_scope import (
    EMPTY_SCOPE,
    LEFT_BEHIND_FACT,
    FailoverScope,
    build_scope,
    explain_never_complete,
    explain_offline_refusals,
    find_lost_topics,
    find_never_complete,
    has_moved,
    list_left_behind,
)
from mirror_core.decide.failure_remedies import BAD_COPY_KINDS, REMEDIES
from mirror_core.decide.fence_limits import explain_unfenceable_source
from mirror_core.decide.fence_state import has_failed_over
from mirror_core.decide.forecast_accuracy import build_forecast
from mirror_core.decide.loss_bound import find_uncopied
from mirror_core.decide.mirror_change import explain_leaving_refusal
from mirror_core.decide.mirror_snapshot import (
    DestinationSnapshot,
    HiddenTopics,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
    find_without_copy,
    find_write_barrier,
    list_failed,
    list_foreign_starts,
    list_lags,
    select_healthy,
)
from mirror_core.decide.plan_figures import (
    list_group_figures,
    list_partition_figures,
    list_plan_figures,
    list_plan_unknowns,
    list_plan_warnings,
)
from mirror_core.decide.steps import plan_steps
from mirror_core.model.config_sections import AuthorizerConfig
from mirror_core.model.figures import MAX_RECORDED_NAMES
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionState, PartitionStatus, is_healthy
from mirror_core.model.names import ClusterName, Partition, get_base_name
from mirror_core.model.run import FactLifetime, Plan, PlanFact, RunKind, RunMode
from mirror_core.rights.required_acls import explain_lacking_rights, stops_run


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """A plan, and the reasons why it may not run; none: it may."""

    plan: Plan
    reasons: tuple[Finding, ...]
    scope: FailoverScope = EMPTY_SCOPE
    source_seen: bool = True


def decide_failover(snapshot: MirrorSnapshot) -> PlanDecision:
    return PlanDecision(
        Plan(
            kind=RunKind.FAILOVER,
            mirror=snapshot.mirror.name,
            mode=snapshot.mode,
            steps=plan_steps(
                RunKind.FAILOVER,
                snapshot.mirror,
                snapshot.mode,
                barred=find_write_barrier(snapshot),
            ),
            bound_facts=list_bound_facts(snapshot),
            warnings=tuple(list_plan_warnings(snapshot)),
            unknown=tuple(list_plan_unknowns(snapshot)),
            figures=dict(list_plan_figures(snapshot)),
            partitions=dict(list_partition_figures(snapshot)),
            groups=dict(list_group_figures(snapshot)),
            forecast=UNSET if has_moved(snapshot) else build_forecast(snapshot),
            rights=(
                UNSET
                if snapshot.promotion_grants is None
                else tuple(str(acl) for acl in snapshot.promotion_grants[:MAX_RECORDED_NAMES])
            ),
        ),
        tuple(_list_reasons(snapshot)),
        build_scope(snapshot),
        source_seen=isinstance(snapshot.source, SourceSnapshot),
    )


def list_bound_facts(snapshot: MirrorSnapshot) -> tuple[PlanFact, ...]:
    """What an approval is bound to. Never an offset that a group has committed."""
    return tuple(_list_bound_facts(snapshot))


def list_new_reasons(snapshot: MirrorSnapshot, *, source_seen: bool) -> tuple[Finding, ...]:
    """That the run holds and stops the mirror is no reason, nor is a source that died."""
    return (*_list_destination_reasons(snapshot), *(_list_source_reasons(snapshot) if source_seen else ()))


def list_changed_facts(
    approved: Iterable[PlanFact], current: Iterable[PlanFact], *, source_seen: bool
) -> tuple[str, ...]:
    """Facts that void an approval.

    Skips those that only the source can tell if it died after fence, drain and comparison: a disaster during a planned
    failover must not block both sides.
    """
    lasting_facts = (
        {FactLifetime.UNTIL_PROMOTION, FactLifetime.WHILE_SOURCE_ANSWERS}
        if source_seen
        else {FactLifetime.UNTIL_PROMOTION}
    )
    before, after = ({f.name: f.value for f in facts if f.lifetime in lasting_facts} for facts in (approved, current))
    return tuple(
        f"{name}: approved was {before.get(name, 'absent')}, now it is {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


UNSEEN_CLUSTER: Final = "unseen"
AUTHORIZER_FACT: Final = "authorizer of the source"
"""Fact name; the value is "nothing" or "fence_command" where it is not Kafka's."""
MAX_DIGEST_ITEMS: Final = 3


def _list_bound_facts(snapshot: MirrorSnapshot) -> Iterator[PlanFact]:
    mirror, destination = snapshot.mirror, snapshot.destination
    yield PlanFact("desired", mirror.desired)
    yield PlanFact("mirror", f"created {mirror.created_ms}")
    cluster_id = destination.cluster_id if isinstance(destination, DestinationSnapshot) else UNSEEN_CLUSTER
    yield PlanFact("destination", cluster_id, FactLifetime.UNTIL_PROMOTION)
    topics: dict[str, list[PartitionStatus]] = {}
    for partition, status in sorted(snapshot.statuses.items()):
        topics.setdefault(partition.topic, []).append(status)
    for name, statuses in topics.items():
        ids = sorted({f"{s.source_topic_id} -> {s.destination_topic_id}" for s in statuses})
        yield PlanFact(f"topic {name}", f"{len(statuses)} partition(s), {', '.join(ids)}", FactLifetime.UNTIL_PROMOTION)
    yield PlanFact(
        "failed partitions",
        digest_items(
            str(p)
            for p in list_failed(snapshot)
            if snapshot.mode is RunMode.UNPLANNED
            or p not in snapshot.left_behind
            or snapshot.statuses[p].kind in BAD_COPY_KINDS
        ),
        FactLifetime.UNTIL_PROMOTION,
    )
    yield PlanFact("grants", digest_items(sorted(snapshot.grants)), FactLifetime.WHILE_SOURCE_ANSWERS)
    if snapshot.mode is RunMode.PLANNED:
        yield PlanFact("states", digest_items(f"{p}={snapshot.statuses[p].state}" for p in sorted(snapshot.statuses)))
        if left_partitions := list_left_behind(snapshot):  # the run takes back what has a leader again
            yield PlanFact(LEFT_BEHIND_FACT, digest_items(map(str, left_partitions)))
        yield from _list_source_facts(
            snapshot.source, snapshot.source_authorizer, {name: len(statuses) for name, statuses in topics.items()}
        )
        return
    # A dying source answers now and then: an approval that is bound to what it says would never hold.
    yield PlanFact("left out", digest_items(sorted(find_lost_topics(snapshot))), FactLifetime.UNTIL_PROMOTION)
    foreign_starts = list_foreign_starts(snapshot)
    if lost_partitions := find_uncopied(
        snapshot.statuses,
        snapshot.source_observation,
        foreign_starts=foreign_starts,
        early_deletions=snapshot.early_deletions,
    ):
        yield PlanFact(
            "not mirrored",
            digest_items(f"{partition} ({lost_partitions[partition]})" for partition in sorted(lost_partitions)),
        )
    if snapshot.left_behind and (left_copies := snapshot.left_behind & find_never_complete(snapshot).keys()):
        yield PlanFact(LEFT_BEHIND_FACT, digest_items(map(str, sorted(left_copies))))
    if snapshot.continues_run is not None:
        yield PlanFact("goes on from", snapshot.continues_run)


def _list_source_facts(
    source: SourceSnapshot | UnseenCluster, authorizer_config: AuthorizerConfig, topics: Mapping[str, int]
) -> Iterator[PlanFact]:
    yield PlanFact(
        "source",
        source.cluster_id if isinstance(source, SourceSnapshot) else UNSEEN_CLUSTER,
        FactLifetime.WHILE_SOURCE_ANSWERS,
    )
    if isinstance(source, SourceSnapshot):
        authorizer = (
            str(authorizer_config.get_write_barrier(denials_possible=False))
            if authorizer_config.is_foreign
            else str(source.authorizer)
        )
        for name, topic in sorted(source.topics.items()):
            if name not in topics:
                yield PlanFact(f"topic {name}", f"not mirrored, {topic.id}", FactLifetime.WHILE_SOURCE_ANSWERS)
        for name, mirrored_count in topics.items():
            partition_count = source.topics[name].partitions if name in source.topics else 0
            if (
                partition_count != mirrored_count
            ):  # as a rule all is mirrored: ten thousand topics need no second fact each
                text = f"{partition_count} partition(s), {mirrored_count} mirrored"
                yield PlanFact(f"topic {name} on the source", text, FactLifetime.WHILE_SOURCE_ANSWERS)
        yield PlanFact("groups", digest_items(sorted(source.groups)))
        yield PlanFact(AUTHORIZER_FACT, authorizer)


def digest_items(items: Iterable[str]) -> str:
    """Count, first items, and a fingerprint of all. Callers sort the items."""
    first, count, fingerprint = list[str](), 0, hashlib.sha256()
    for item in items:
        count += 1
        fingerprint.update(f"{item}\n".encode())
        if count <= MAX_DIGEST_ITEMS:
            first.append(item)
    if not count:
        return "none"
    return f"{count}: {', '.join(first)}{', ...' if count > MAX_DIGEST_ITEMS else ''} ({fingerprint.hexdigest()[:16]})"


def _list_reasons(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror = snapshot.mirror
    if snapshot.active_run:
        yield snapshot.active_run.explain()
    elif mirror.desired is DesiredState.STOPPED:
        yield Finding(
            "mirror_stopped",
            mirror.name,
            destination=mirror.destination,
            failed_over=has_failed_over(snapshot.pending_fence),
            failback_of=get_base_name(mirror.name) if mirror.failback_run else "",
            source=mirror.source,
            source_silent=isinstance(snapshot.source, UnseenCluster),
            run=mirror.failback_run,
        )
    if snapshot.active_run or has_moved(snapshot):
        return  # refused above; applications may write on the destination, so that it is rightly ahead
    if mirror.is_preparing and snapshot.mode is RunMode.PLANNED:
        yield explain_preparing(mirror)
    if snapshot.mode is RunMode.PLANNED:
        yield from explain_leaving_refusal(mirror, snapshot.statuses)
    if not snapshot.statuses:
        yield Finding("nothing_mirrored", mirror.name)
    unready = [p for p, s in sorted(snapshot.statuses.items()) if s.state in _UNREADY_STATES]
    if unready and snapshot.mode is RunMode.PLANNED:
        yield Finding(
            "initial_copy_unfinished",
            mirror.name,
            partitions=unready,
            mirror=mirror.name,
            copying=snapshot.copying,
        )
    if snapshot.mode is RunMode.PLANNED:
        yield from _list_uncopied_reasons(snapshot)
        if finding := find_destination_clock_behind(snapshot.mirror, snapshot.clocks_ahead_ms):
            yield finding
    yield from explain_never_complete(snapshot, left_behind=False)
    yield from explain_lacking_rights(right for right in snapshot.lacking_rights if stops_run(right, snapshot.mode))
    yield from _list_cluster_reasons(snapshot)


def _list_uncopied_reasons(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    source, mirror = snapshot.source, snapshot.mirror
    by_topic: dict[str, list[Partition]] = {}
    for partition in sorted(find_without_copy(snapshot)):
        is_gone = (
            isinstance(source, SourceSnapshot) and partition.topic not in source.topics.keys() | source.hidden.topics
        )
        if not is_gone and not is_healthy(snapshot.statuses[partition]):
            by_topic.setdefault(partition.topic, []).append(partition)
    for topic, lacking in by_topic.items():
        remedy = REMEDIES[(status := snapshot.statuses[lacking[0]]).kind or FailureKind.OTHER]
        is_whole_topic = len(lacking) == sum(p.topic == topic for p in snapshot.statuses)
        yield Finding(
            "topic_without_copy",
            topic,
            partitions=() if is_whole_topic else lacking,
            destination=mirror.destination,
            reason=status.reason or "FAILED",
            first_step=remedy.first_step,
            mirror=mirror.name,
            action=remedy.actions[0],
            copying=snapshot.copying,
        )


def _list_cluster_reasons(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    yield from _list_destination_reasons(snapshot)
    yield from _list_source_reasons(snapshot)


def _list_destination_reasons(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    if isinstance(snapshot.destination, UnseenCluster):
        yield Finding("destination_unseen", snapshot.mirror.destination, reason=snapshot.destination.reason)
    else:
        yield from _check_destination(snapshot, snapshot.destination)


def _list_source_reasons(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror = snapshot.mirror
    if snapshot.mode is RunMode.UNPLANNED:
        return  # nothing that the source says, or does not say, forbids it
    if isinstance(snapshot.source, UnseenCluster):
        is_stopped = mirror.desired is DesiredState.STOPPED
        yield Finding(
            "source_unseen", mirror.source, reason=snapshot.source.reason, mirror=mirror.name, stopped=is_stopped
        )
    else:
        yield from _check_source(snapshot, snapshot.source)


_UNREADY_STATES: Final = frozenset({PartitionState.UNKNOWN, PartitionState.LOG_ALIGNMENT})


def _check_destination(snapshot: MirrorSnapshot, destination: DestinationSnapshot) -> Iterator[Finding]:
    if destination.cluster_id != snapshot.mirror.destination_id:
        yield Finding(
            "destination_replaced",
            snapshot.mirror.destination,
            cluster_id=destination.cluster_id,
            recorded_id=snapshot.mirror.destination_id,
        )
    if destination.hidden.topics and snapshot.mode is RunMode.PLANNED:
        yield _refuse_hidden(snapshot.mirror.destination, destination.hidden)
    if snapshot.mode is RunMode.PLANNED and (
        leaderless := set(destination.offline_partitions) & set(select_healthy(snapshot.statuses))
    ):
        yield Finding("destination_offline", snapshot.mirror.destination, partitions=sorted(leaderless))
    if snapshot.mode is RunMode.UNPLANNED:
        if snapshot.statuses and len(find_lost_topics(snapshot)) == len({p.topic for p in snapshot.statuses}):
            yield (
                _refuse_hidden(snapshot.mirror.destination, destination.hidden)
                if destination.hidden.topics
                else Finding("nothing_to_promote", snapshot.mirror.destination)
            )
        return  # what is lost is left out, and said
    for topic, ids in _collect_topic_ids(select_healthy(snapshot.statuses), lambda s: s.destination_topic_id):
        if topic in destination.hidden.topics:
            continue
        if topic not in destination.topics:
            yield Finding("mirror_topic_gone", topic, destination=snapshot.mirror.destination)
        elif ids != {destination.topics[topic].id}:
            yield Finding("topic_recreated", topic, cluster=snapshot.mirror.destination)


def _refuse_hidden(cluster: ClusterName, hidden: HiddenTopics) -> Finding:
    topics = sorted(hidden.topics)
    return Finding("topics_hidden", cluster, topics=topics, user=hidden.user, grant_command=hidden.grant_command)


def _check_source(snapshot: MirrorSnapshot, source: SourceSnapshot) -> Iterator[Finding]:
    name = snapshot.mirror.source
    yield from explain_unfenceable_source(snapshot)
    if source.cluster_id != snapshot.mirror.source_id:
        yield Finding("source_replaced", name, cluster_id=source.cluster_id, recorded_id=snapshot.mirror.source_id)
    if source.fence_side_effects:
        yield source.fence_side_effects
    if source.hidden.topics:
        yield _refuse_hidden(name, source.hidden)
    for topic, description in sorted(source.topics.items()):
        missing = [i for i in range(description.partitions) if Partition(topic, i) not in snapshot.statuses]
        if missing:
            yield Finding(
                "partitions_not_mirrored",
                topic,
                source=name,
                indexes=missing,
                mirror=snapshot.mirror.name,
                copying=snapshot.copying,
            )
    copied = {p: status for p, status in snapshot.statuses.items() if status.destination_topic_id}
    for topic, ids in _collect_topic_ids(copied, lambda s: s.source_topic_id):  # of FAILED ones, too: nothing is copied
        if topic in source.topics and ids != {source.topics[topic].id}:
            yield Finding("topic_recreated", topic, cluster=name)
    yield from explain_offline_refusals(snapshot)
    if isinstance(snapshot.destination, DestinationSnapshot):
        for partition, offsets in _list_ahead(snapshot, snapshot.destination):
            yield Finding(
                "destination_ahead", partition, destination=snapshot.mirror.destination, source=name, offsets=offsets
            )


def _list_ahead(snapshot: MirrorSnapshot, destination: DestinationSnapshot) -> Iterator[tuple[Partition, int]]:
    foreign_starts = list_foreign_starts(snapshot)
    for partition, lag in list_lags(snapshot):
        if partition in snapshot.left_behind:  # neither drained nor compared
            continue
        if partition in foreign_starts:
            yield partition, destination.positions[partition] - foreign_starts[partition]
        elif lag is not None and lag < 0:
            yield partition, -lag


def _collect_topic_ids(
    statuses: Mapping[Partition, PartitionStatus], get_id: Callable[[PartitionStatus], str]
) -> Iterator[tuple[str, set[str]]]:
    by_topic: dict[str, set[str]] = {}
    for partition, status in statuses.items():
        by_topic.setdefault(partition.topic, set()).add(get_id(status))
    yield from sorted(by_topic.items())

"""What a failover plan shows beside its steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Final

from mirror_core.decide import failover_scope, fence_limits
from mirror_core.decide.clock_skew import compute_age_s, explain_clock_behind, find_clock_difference, find_leader_ahead
from mirror_core.decide.consistency_groups import list_completeness_figures
from mirror_core.decide.deletion_hold import format_early_deletions, list_held_figures
from mirror_core.decide.drills import FORECAST_KEYS
from mirror_core.decide.failover_scope import find_gone_topics, find_lost_topics
from mirror_core.decide.fence_state import describe_fence, warn_pending_fence
from mirror_core.decide.filters import build_setting_filter
from mirror_core.decide.forecast_accuracy import compute_backlog, find_refused_s, predict_standstill_s, select_given_up
from mirror_core.decide.gaps_and_resume import format_never_copied
from mirror_core.decide.group_coverage import (
    cannot_sync_again,
    count_coverage,
    find_share_sync_age_s,
    find_uncounted_groups,
    format_all_deleted,
    format_all_refused,
    has_listed_share_groups,
    list_active_groups,
    list_uncommitted,
)
from mirror_core.decide.loss_bound import (
    count_unknown,
    format_end_age,
    format_losses,
    list_cut_figures,
    list_partition_loss_figures,
    list_uncopied_figures,
    sum_missing,
)
from mirror_core.decide.mirror_change import list_paused_topics, warn_closed_topics, warn_leaving_topics
from mirror_core.decide.mirror_snapshot import (
    NO_HIDDEN_TOPICS,
    CopyingState,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
    can_lose,
    find_without_copy,
    format_foreign_starts,
    list_failed,
    list_foreign_starts,
    list_lags,
)
from mirror_core.decide.verification import find_differences, format_differences, list_proof_figures
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.figures import MAX_RECORDED_NAMES, FigureItems, FigureKey, Figures, FigureValue
from mirror_core.model.findings import Finding
from mirror_core.model.forecast import TransactionArrival
from mirror_core.model.mirror import DesiredState, FailureKind, PartitionStatus
from mirror_core.model.names import Partition, get_heartbeat_topic
from mirror_core.model.parity_verdict import UNREADABLE_KIND_PREFIX, KnownDifference
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import GroupCoverage
from mirror_core.model.text import format_count, format_option, join_limited
from mirror_core.rights.acl_rules import OWN_TOPIC_PREFIX
from mirror_core.rights.required_acls import explain_lacking_rights, stops_run

MAX_LISTED_FAILED: Final = 5


def list_plan_warnings(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    """Gravest first: approval pages show only the first ones."""
    mirror = snapshot.mirror
    if failover_scope.has_moved(snapshot):
        yield from _warn_fence(snapshot)
        return
    if snapshot.left_behind:
        yield from failover_scope.explain_never_complete(snapshot, left_behind=True)
    yield from _warn_differences(snapshot)
    yield from warn_uncopied(snapshot)
    yield from _warn_fence(snapshot)
    if snapshot.mode is RunMode.UNPLANNED:
        yield from _warn_unplanned(snapshot)
    yield from warn_clock_skew(snapshot)
    yield from _warn_failed_partitions(snapshot)
    yield from failover_scope.warn_left_behind(snapshot)
    if paused := list_paused_topics(mirror, snapshot.statuses):
        yield Finding("topics_paused", mirror.name, topics=paused)
    yield from warn_leaving_topics(mirror, snapshot.leaving_topics)
    yield from warn_closed_topics(mirror, snapshot.closed_topics, _explain_unenforced(snapshot))
    if never_copied := format_never_copied(snapshot.statuses):
        yield Finding("never_copied", mirror.source, destination=mirror.destination, listed=never_copied)
    if can_lose(snapshot):
        yield from list_loss_warnings(snapshot)
    if isinstance(snapshot.source, SourceSnapshot):
        yield from _warn_source(snapshot, snapshot.source)
        if snapshot.forecast and (backlog := compute_backlog(snapshot)) != 0:
            earlier_s, basis = snapshot.forecast.seconds, snapshot.forecast.basis
            yield Finding(
                "standstill_unpredicted",
                mirror.name,
                offsets=backlog,
                earlier_s=earlier_s,
                basis=basis,
                mirror=mirror.name,
                copying=snapshot.copying,
            )
    yield from _warn_groups_left(snapshot)
    yield from fence_limits.warn_foreign_authorizers(snapshot)
    if snapshot.mode is RunMode.PLANNED and mirror.desired is not DesiredState.STOPPED:
        yield from _warn_long_standstill(snapshot)
    if isinstance(snapshot.destination, DestinationSnapshot):
        yield from _warn_destination(
            mirror.destination, snapshot.destination, snapshot.destination_authorizer.authorizer
        )
    for other, topic_count in snapshot.sibling_mirrors:
        yield Finding(
            "sibling_mirror_left",
            other.name,
            topic_count=topic_count,
            source=other.source,
            sibling_destination=other.destination,
            destination=mirror.destination,
        )
    yield from _warn_state_writers(snapshot)
    yield from snapshot.unusable_hooks
    yield from snapshot.unusable_fence_commands
    yield from _warn_rights(snapshot)


def _warn_fence(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    yield from describe_fence(snapshot.pending_fence)
    if isinstance(snapshot.source, SourceSnapshot):
        runs = (snapshot.active_run.id,) if snapshot.active_run else ()
        yield from warn_pending_fence(snapshot.pending_fence, runs)
    yield from snapshot.watcher_alarms


def _warn_rights(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror = snapshot.mirror
    yield from explain_lacking_rights(right for right in snapshot.lacking_rights if not stops_run(right, snapshot.mode))
    if snapshot.unbacked_grants:
        yield Finding("grants_unbacked", mirror.source, grants=snapshot.unbacked_grants, mirror=mirror.name)
    if snapshot.excluded_principals:
        yield Finding(
            "principals_excluded", mirror.destination, principals=snapshot.excluded_principals, source=mirror.source
        )
    if snapshot.quotas.missing:
        yield Finding(
            "client_quotas_differ", mirror.source, quotas=snapshot.quotas.missing, destination=mirror.destination
        )
    if snapshot.quotas.wide:
        yield Finding("quotas_beyond_mirror", mirror.destination, quotas=snapshot.quotas.wide)
    yield from _warn_refused_settings(snapshot)
    if mechanisms_by_user := snapshot.unknown_scram_users:
        first_user, first_mechanisms = next(iter(mechanisms_by_user.items()))
        yield Finding(
            "scram_users_unknown",
            mirror.source,
            users=[f"{user} ({', '.join(mechanisms)})" for user, mechanisms in mechanisms_by_user.items()],
            destination=mirror.destination,
            entity=format_option("--entity-name", first_user),
            mechanism=first_mechanisms[0],
        )
    if isinstance(snapshot.destination, DestinationSnapshot):
        grant_warnings = snapshot.destination.grant_warnings
        yield from grant_warnings[:MAX_RECORDED_NAMES]
        if (more := len(grant_warnings) - MAX_RECORDED_NAMES) > 0:
            yield Finding("more_grant_remarks", mirror.destination, count=more)


def _warn_refused_settings(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror, setting_filter = snapshot.mirror, build_setting_filter(snapshot.mirror)
    mirrored = {partition.topic for partition in snapshot.statuses}
    refused = {
        f"{recorded.topic}: {key}={recorded.overrides[key]}": reason
        for recorded in snapshot.refused_settings
        if recorded.topic in mirrored
        for key, reason in setting_filter.select(recorded.refused).items()
    }
    if settings := sorted(refused):
        reason = refused[settings[0]]
        yield Finding("settings_refused", mirror.destination, settings=settings, source=mirror.source, reason=reason)


def _warn_differences(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    proved = failover_scope.list_proved(snapshot)
    differences = find_differences(snapshot.verification, snapshot.statuses)
    yield from _describe_differences(snapshot, [d for d in differences if d.partition in proved], ends_run=True)
    yield from _describe_differences(snapshot, [d for d in differences if d.partition not in proved], ends_run=False)


def _describe_differences(
    snapshot: MirrorSnapshot, differences: Sequence[KnownDifference], *, ends_run: bool
) -> Iterator[Finding]:
    mirror = snapshot.mirror
    different = [difference for difference in differences if not difference.kind.startswith(UNREADABLE_KIND_PREFIX)]
    unreadable = [difference for difference in differences if difference.kind.startswith(UNREADABLE_KIND_PREFIX)]
    if text := format_differences(different, snapshot.broker_now_ms):
        yield Finding(
            "copy_differs",
            mirror.name,
            source=mirror.source,
            destination=mirror.destination,
            listed=text,
            ends_run=ends_run,
        )
    if text := format_differences(unreadable, snapshot.broker_now_ms):
        yield Finding("copy_unreadable", mirror.name, destination=mirror.destination, listed=text, ends_run=ends_run)


def warn_uncopied(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror = snapshot.mirror
    bound = snapshot.loss if snapshot.is_drained or can_lose(snapshot) else None
    if bound and (losses := bound.without_copy):
        whole_topics = bound.group_whole_topics()
        names = {topic: f"{topic} ({format_count(len(rows), 'partition')})" for topic, rows in whole_topics.items()}
        unknown_topics = {topic for topic, rows in whole_topics.items() if count_unknown(rows)}
        yield Finding(
            "partitions_uncopied",
            mirror.destination,
            source=mirror.source,
            count=len(losses),
            offsets=sum_missing(losses.values()),
            unknown=count_unknown(losses.values()),
            partitions=format_losses(losses),
            unknown_in_topics=sum(map(count_unknown, whole_topics.values())),
            unknown_topics=[name for topic, name in names.items() if topic in unknown_topics],
            counted_topics=[name for topic, name in names.items() if topic not in unknown_topics],
        )
    if early_deletions := snapshot.early_deletions:
        listed = format_early_deletions(early_deletions)
        yield Finding("deleted_early", mirror.destination, source=mirror.source, listed=listed)


def _warn_long_standstill(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror, lease = snapshot.mirror.name, snapshot.lease
    if snapshot.copying is not CopyingState.WORKS:
        yield Finding("nobody_copies", mirror, mirror=mirror, copying=snapshot.copying)
    elif lease is not None and lease.wait_reasons:
        yield Finding("copying_waits", mirror, reasons=lease.wait_reasons)


def _warn_state_writers(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    for name, side in ((snapshot.mirror.destination, snapshot.destination), (snapshot.mirror.source, snapshot.source)):
        if not isinstance(side, UnseenCluster) and side.state_writers:
            yield Finding("state_writers", name, principals=side.state_writers, prefix=OWN_TOPIC_PREFIX)


def _warn_failed_partitions(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    gone_topics = find_gone_topics(snapshot)
    if failed := _list_failed_with_source(snapshot):
        partitions = snapshot.loss.partitions
        losses = [partitions[p] for p in failed]
        yield Finding(
            "partitions_failed",
            snapshot.mirror.name,
            count=len(failed),
            lost=sum_missing(losses),
            unknown=count_unknown(losses),
            failures=[f"{p}{_format_failure(snapshot.statuses[p])}" for p in failed[:MAX_LISTED_FAILED]],
            more=max(0, len(failed) - MAX_LISTED_FAILED),
        )
    if gone_topics:
        yield Finding("topics_gone_from_source", snapshot.mirror.source, topics=sorted(gone_topics))


def _list_failed_with_source(snapshot: MirrorSnapshot) -> list[Partition]:
    """They have copies, and the source has, or may have, newer records."""
    lacking, gone_topics = find_without_copy(snapshot), find_gone_topics(snapshot)
    return [
        p
        for p in list_failed(snapshot)
        if p not in lacking and (p.topic not in gone_topics or snapshot.statuses[p].kind is not FailureKind.GONE)
    ]


def _format_failure(status: PartitionStatus) -> str:
    offset_text = "" if status.failed_at is None else f" at offset {status.failed_at}"
    return f"{offset_text} ({status.reason})"


def _warn_source(snapshot: MirrorSnapshot, source: SourceSnapshot) -> Iterator[Finding]:
    name = snapshot.mirror.source
    yield from source.stray_denials
    if not source.authorizer and not snapshot.source_authorizer.is_foreign:
        yield Finding("source_without_acls", name, authorizer=snapshot.source_authorizer.authorizer)
    if source.groups_partly_listed:
        yield Finding("groups_unreported", name)
    if source.offline_partitions:
        yield Finding("source_partitions_offline", name, partitions=source.offline_partitions)
    if source.transactions:
        yield Finding("transactions_open", name, transactions=source.transactions)


def _warn_groups_left(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    destination = snapshot.mirror.destination
    yield from _warn_share_groups(snapshot)
    if snapshot.mirror.groups and cannot_sync_again(snapshot) and not _has_listed_all_groups(snapshot):
        yield Finding("groups_unlisted", snapshot.mirror.name, destination=destination)
    if active_groups := list_active_groups(snapshot):
        yield Finding("groups_active", destination, groups=active_groups)
    uncommitted = list_uncommitted(snapshot)
    if text := format_all_refused(uncommitted):
        yield Finding("group_offsets_uncommitted", destination, listed=text)
    if text := format_all_deleted(uncommitted):
        yield Finding("group_offsets_deleted", destination, listed=text, source=snapshot.mirror.source)


def _has_listed_all_groups(snapshot: MirrorSnapshot) -> bool:
    groups_left = snapshot.groups_left
    return snapshot.groups is not None and (
        groups_left is None or has_listed_share_groups(snapshot.mirror, groups_left)
    )


def _warn_share_groups(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    destination, groups_left = snapshot.mirror.destination, snapshot.groups_left
    if isinstance(snapshot.source, SourceSnapshot) and snapshot.mode is RunMode.PLANNED:
        share_groups, age_s = snapshot.source.share_groups, None
    else:
        share_groups = dict.fromkeys(groups_left.share_groups if groups_left else ())
        age_s = find_share_sync_age_s(snapshot.mirror, groups_left, snapshot.now_ms)
    refused = {item.group for item in list_uncommitted(snapshot) if item.coverage is GroupCoverage.REFUSED}
    if continued := sorted(share_groups.keys() - refused):
        counts = [
            f"{name}: {'unknown' if (count := share_groups[name]) is None else format_count(count, 'record')}"
            for name in continued
        ]
        yield Finding("share_groups_redelivered", destination, groups=counts, synced_s=age_s)


def _explain_unenforced(snapshot: MirrorSnapshot) -> str:
    destination, authorizer = snapshot.destination, snapshot.destination_authorizer.authorizer
    is_ruled = not isinstance(destination, DestinationSnapshot) or destination.authorizer
    return "" if is_ruled else authorizer.no_acl_reason


def _warn_destination(name: str, destination: DestinationSnapshot, authorizer: AuthorizerKind) -> Iterator[Finding]:
    if not destination.authorizer and authorizer is not AuthorizerKind.FOREIGN:
        yield Finding("destination_without_acls", name, authorizer=authorizer)
    if shortfalls := destination.min_isr_shortfalls:
        topics = [f"{shortfall.topic} ({shortfall.in_sync} of {shortfall.needed})" for shortfall in shortfalls]
        yield Finding("min_isr_shortfall", name, topics=topics)
    if destination.groups_unknown or destination.groups_partly_listed:
        yield Finding("groups_unreported", name)
    if destination.groups_unread:
        yield Finding("groups_unread", name, count=destination.groups_unread)


def _warn_unplanned(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    mirror, destination = snapshot.mirror, snapshot.destination
    if isinstance(snapshot.source, SourceSnapshot):
        lacking = {*_list_failed_with_source(snapshot), *snapshot.early_deletions}
        yield Finding("source_answers", mirror.source, failed=len(lacking))
    if mirror.is_preparing:
        yield Finding("failback_broken_off", mirror.failback_run, source=mirror.source, destination=mirror.destination)
    if snapshot.continues_run is not None:
        yield Finding("run_continued", snapshot.continues_run, source=mirror.source, drained=snapshot.is_drained)
    if snapshot.conducted_by:
        yield Finding(
            "conductor_loses_mirror", snapshot.continues_run, conductor=snapshot.conducted_by, source=mirror.source
        )
    if isinstance(destination, DestinationSnapshot) and destination.authorizer and not snapshot.promotion_grants:
        yield Finding("no_rights_staged", mirror.destination)
    hidden = destination.hidden if isinstance(destination, DestinationSnapshot) else NO_HIDDEN_TOPICS
    if hidden.topics:
        yield Finding(
            "hidden_topics_left_out",
            mirror.destination,
            topics=sorted(hidden.topics),
            user=hidden.user,
            grant_command=hidden.grant_command,
        )
    created_topics = {p.topic for p, status in snapshot.statuses.items() if status.destination_topic_id}
    for topic in sorted(find_lost_topics(snapshot) - hidden.topics - created_topics):
        yield Finding("topic_never_created", topic, destination=mirror.destination, mirror=mirror.name)
    for topic in sorted((find_lost_topics(snapshot) - hidden.topics) & created_topics):
        yield Finding("topic_replaced", topic, destination=mirror.destination)


def list_plan_unknowns(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    # No error text here: it goes into the plan's hash, and must read the same when nothing has changed.
    if isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED:
        yield Finding("source_facts_unknown", snapshot.mirror.source)
    if isinstance(snapshot.destination, UnseenCluster):
        yield Finding("destination_facts_unknown", snapshot.mirror.destination)


def list_plan_figures(snapshot: MirrorSnapshot) -> FigureItems:
    if snapshot.owner:
        yield FigureKey.OWNER, snapshot.owner
    if snapshot.rto_s is not None:
        yield FigureKey.RTO_S, snapshot.rto_s
    yield FigureKey.PARTITIONS, len(snapshot.statuses)
    if failover_scope.has_moved(snapshot):
        return
    left_partitions = frozenset(failover_scope.list_left_behind(snapshot))
    lags = [lag for partition, lag in list_lags(snapshot) if partition not in left_partitions]
    yield FigureKey.RIGHTS_GIVEN, None if snapshot.promotion_grants is None else len(snapshot.promotion_grants)
    is_lag_known = snapshot.statuses and None not in lags
    yield FigureKey.LAG_OFFSETS, sum(max(0, lag or 0) for lag in lags) if is_lag_known else None
    yield from failover_scope.list_left_behind_figures(snapshot)
    yield from list_held_figures(snapshot.statuses)
    seconds = predict_standstill_s(snapshot)
    yield FORECAST_KEYS[snapshot.mode], seconds
    if snapshot.forecast and seconds is not None:
        yield FigureKey.FORECAST_BASIS, snapshot.forecast.basis
    if isinstance(snapshot.destination, DestinationSnapshot):
        ids = {name: topic.id for name, topic in snapshot.destination.topics.items()}
        positions, now_ms = snapshot.destination.positions, snapshot.broker_now_ms
        yield from list_proof_figures(snapshot.verification, positions, ids, now_ms)
    if isinstance(snapshot.source, UnseenCluster):
        yield FigureKey.SOURCE_PROBLEM, snapshot.source.reason
    yield from list_loss_figures(snapshot)
    if can_lose(snapshot):
        yield from list_completeness_figures(snapshot)
    if isinstance(snapshot.destination, UnseenCluster):
        yield FigureKey.DESTINATION_PROBLEM, snapshot.destination.reason
    if snapshot.hooks:
        yield FigureKey.SWITCH_HOOKS, dict(snapshot.hooks)
    if snapshot.lease is not None:
        yield FigureKey.LEASE_OWNER, snapshot.lease.owner
        yield FigureKey.LEASE_RELEASED, snapshot.lease.released
        yield FigureKey.LEASE_HEARTBEAT_S, compute_age_s(snapshot.state_read_ms, snapshot.lease.heartbeat_ms)
    source = snapshot.source
    if isinstance(source, SourceSnapshot) and (unread_groups := len(set(source.groups) - set(source.committed))):
        yield FigureKey.UNREAD_GROUPS, unread_groups


def list_loss_warnings(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    bound, mirror = snapshot.loss, snapshot.mirror
    if snapshot.source_observation is None:
        yield Finding("source_never_observed", mirror.source)
    elif bound.topics_listed_s is None and not bound.has_clock_skew:
        yield Finding("topics_unlisted", mirror.source, listed_s=None)
    if snapshot.source_observation is not None and not bound.heartbeats:
        topic = get_heartbeat_topic(mirror.name)
        yield Finding("no_heartbeat", mirror.source, destination=mirror.destination, topic=topic)
    for partition, partition_loss in bound.application_losses.items():
        if partition_loss.is_offline and not partition_loss.is_failed:
            yield Finding("end_unseen", partition, source=mirror.source, last_seen=format_end_age(partition_loss))
    if foreign_starts := list_foreign_starts(snapshot):
        listed = format_foreign_starts(foreign_starts)
        yield Finding("written_before_promotion", mirror.destination, listed=listed)
    doubtful = [t for t in bound.transactions if t.arrival is not TransactionArrival.ABSENT]
    for transaction in doubtful[:MAX_RECORDED_NAMES]:
        yield Finding(
            "transaction_in_doubt",
            transaction.id,
            state=transaction.state,
            arrival=transaction.arrival.name.lower(),
            copied=transaction.copied,
            not_copied=transaction.not_copied,
        )
    if more := max(0, len(doubtful) - MAX_RECORDED_NAMES) + bound.unlisted_transactions:
        yield Finding("more_transactions_in_doubt", mirror.source, count=more)
    if bound.open_transactional_ids:
        transactions = [f"{name!r} ({join_limited(parts)})" for name, parts in bound.open_transactional_ids.items()]
        yield Finding("transactional_ids_open", mirror.source, transactions=transactions)


def list_loss_figures(snapshot: MirrorSnapshot) -> FigureItems:
    is_unplanned = snapshot.is_drained or can_lose(snapshot)
    if not (is_unplanned or list_failed(snapshot) or snapshot.early_deletions):
        return
    bound = snapshot.loss
    losses = select_given_up(snapshot)
    if is_unplanned:
        yield FigureKey.SOURCE_DRAINED, snapshot.is_drained
    if losses or is_unplanned:
        yield FigureKey.LOST_OFFSETS, sum_missing(losses.values()) if losses or not snapshot.is_drained else 0
    if unknown := count_unknown(losses.values()):
        yield FigureKey.LOST_UNKNOWN_PARTITIONS, unknown
    if is_unplanned:
        yield from list_uncopied_figures(bound)
    if not can_lose(snapshot):
        return
    yield FigureKey.SOURCE_SEEN_S, bound.observed_s
    if (refused_s := find_refused_s(snapshot)) is not None:
        yield FigureKey.SOURCE_REFUSED_S, refused_s
    yield FigureKey.TOPICS_LISTED_S, bound.topics_listed_s
    beats = bound.heartbeats
    yield FigureKey.HEARTBEAT_AGES_S, {str(b.partition): compute_age_s(snapshot.now_ms, b.at_ms) for b in beats}
    yield FigureKey.HEARTBEAT_NUMBERS, {str(beat.partition): beat.number for beat in beats}
    if apart := [partition_loss for partition_loss in losses.values() if partition_loss.is_outside_bound]:
        yield FigureKey.OUTSIDE_BOUND_PARTITIONS, len(apart)
        yield FigureKey.OUTSIDE_BOUND_OFFSETS, sum_missing(apart)
    yield from list_cut_figures(bound, snapshot.source_observation, snapshot.now_ms)


def list_partition_figures(snapshot: MirrorSnapshot) -> Iterator[tuple[str, Figures]]:
    if failover_scope.has_moved(snapshot):
        return
    left_partitions = frozenset(failover_scope.list_left_behind(snapshot))
    losses = snapshot.loss.partitions if left_partitions or can_lose(snapshot) else {}
    lags = {**(dict.fromkeys(losses) if can_lose(snapshot) else {}), **dict(list_lags(snapshot))}

    def rank(partition: Partition) -> tuple[bool, int, Partition]:
        missing = losses[partition].missing if can_lose(snapshot) else lags[partition]
        return missing is not None, -(missing or 0), partition

    for partition in nsmallest(MAX_RECORDED_NAMES, lags, key=rank):  # of tens of thousands: no key for each is kept
        figures: dict[FigureKey, FigureValue] = {}
        if partition in snapshot.statuses:
            figures |= {
                FigureKey.PARTITION_STATE: snapshot.statuses[partition].state,
                FigureKey.LAG_OFFSETS: lags[partition],
            }
        if partition in left_partitions:
            figures[FigureKey.PARTITION_LEFT_BEHIND] = True
        if can_lose(snapshot) or partition in left_partitions:
            figures |= list_partition_loss_figures(losses[partition])
        yield str(partition), figures


def list_group_figures(snapshot: MirrorSnapshot) -> Iterator[tuple[str, Figures]]:
    if failover_scope.has_moved(snapshot):
        return
    missing_counts = Counter(
        uncommitted.group for uncommitted in list_uncommitted(snapshot) if uncommitted.has_reset_start
    )

    coverage = defaultdict(Counter[GroupCoverage], count_coverage(snapshot))

    def list_missing(group: str) -> Figures:
        missing = {FigureKey.WITHOUT_OFFSET_PARTITIONS: missing_counts[group]} if missing_counts[group] else {}
        counts = {outcome.value: coverage[group][outcome] for outcome in GroupCoverage if coverage[group][outcome]}
        return {**missing, **({FigureKey.GROUP_COVERAGE: counts} if counts else {})}

    destination = snapshot.destination
    if isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED:
        if not isinstance(destination, DestinationSnapshot):
            return
        # One age for all groups of a kind: their offsets are synced together.
        synced_s = compute_age_s(snapshot.now_ms, snapshot.groups.synced_ms) if snapshot.groups else None
        share_groups = snapshot.groups_left.share_groups if snapshot.groups_left else ()
        share_synced_s = find_share_sync_age_s(snapshot.mirror, snapshot.groups_left, snapshot.now_ms)
        for group in sorted(destination.committed.keys() | missing_counts.keys() | coverage.keys())[
            :MAX_RECORDED_NAMES
        ]:
            offsets = destination.committed.get(group, {})
            behind = sum(max(0, destination.positions.get(p, o) - o) for p, o in offsets.items())
            repeats: Figures = {FigureKey.READ_AGAIN_MOST: behind} if offsets else {}
            age_s = share_synced_s if group in share_groups else synced_s
            yield group, {**repeats, **list_missing(group), FigureKey.GROUPS_SYNCED_S: age_s}
        return
    known_offsets = (
        {} if isinstance(destination, UnseenCluster) or destination.groups_unknown else destination.committed
    )
    is_partly_known = (
        isinstance(destination, UnseenCluster)
        or destination.groups_unknown
        or destination.groups_unread
        or destination.groups_partly_listed
    )
    uncounted_groups = find_uncounted_groups(snapshot)
    for group, offsets in sorted(snapshot.source.committed.items())[:MAX_RECORDED_NAMES]:
        figures: dict[FigureKey, FigureValue] = {FigureKey.READ_AGAIN_OFFSETS: None}
        if group in known_offsets or not is_partly_known:
            synced = known_offsets.get(group, {})
            figures[FigureKey.READ_AGAIN_OFFSETS] = sum(
                max(0, o - synced[p]) for p, o in offsets.items() if p in synced
            )
            if absent := sum(p not in synced for p in offsets):
                figures[FigureKey.NOT_SYNCED_PARTITIONS] = absent
            figures |= list_missing(group)
        after_sync = None if group in uncounted_groups else snapshot.source.share_groups.get(group, 0)
        yield group, {**figures, FigureKey.READ_AGAIN_AFTER_SYNC: after_sync}


def warn_clock_skew(snapshot: MirrorSnapshot) -> Iterator[Finding]:
    for cluster, ahead_ms in sorted(snapshot.clocks_ahead_ms.items()):
        if difference := find_clock_difference(cluster, ahead_ms, in_plan=True):
            yield difference
    if leader_ahead := find_leader_ahead(snapshot.mirror.destination, snapshot.leader_ahead_ms):
        yield leader_ahead
    if (clock_behind_s := snapshot.clock_behind_s) is not None:
        yield explain_clock_behind(snapshot.mirror.name, clock_behind_s)

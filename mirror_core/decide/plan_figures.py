"""What a failover plan shows beside its steps: warnings, unknowns, and changing figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from mirror_core.decide import clock_skew, failover_scope, fence_limits, trimmed_offsets
from mirror_core.decide.clock_skew import compute_age_s
from mirror_core.decide.consistency_groups import list_completeness_figures
from mirror_core.decide.deletion_hold import list_held_figures
from mirror_core.decide.drills import FORECAST_KEYS
from mirror_core.decide.failover_scope import find_lost_topics
from mirror_core.decide.fence_state import format_fence_state as words_of
from mirror_core.decide.fence_state import warn_pending_fence
from mirror_core.decide.group_offset_rules import format_all_uncommitted
from mirror_core.decide.loss_bound import (
    can_lose,
    compute_snapshot_loss,
    list_loss_figures,
    list_loss_warnings,
    list_partition_loss_figures,
    warn_uncopied,
)
from mirror_core.decide.mirror_change import warn_closed_topics
from mirror_core.decide.mirror_snapshot import (
    MAX_LISTED,
    NO_HIDDEN_TOPICS,
    DestinationSnapshot,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
    find_without_copy,
    join_limited,
    list_failed,
    list_lags,
    list_uncommitted,
)
from mirror_core.decide.verification import find_differences, format_differences, list_proof_figures
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.figures import FigureItems, FigureKey, Figures, FigureValue
from mirror_core.model.messages import Message
from mirror_core.model.mirror import Lease, PartitionState, PartitionStatus, is_lease_fresh
from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import UNREADABLE_KIND_PREFIX
from mirror_core.model.run import RunMode
from mirror_core.model.text import format_option, format_shell_command
from mirror_core.rights.acl_rules import OWN_TOPIC_PREFIX

MAX_LISTED_FAILED: Final = 5


def list_plan_warnings(snapshot: MirrorSnapshot) -> Iterator[str]:
    """Gravest first: approval pages show only the first ones."""
    yield from _warn_differences(snapshot)
    yield from warn_uncopied(snapshot)
    yield from words_of(snapshot.pending_fence)
    if isinstance(snapshot.source, SourceSnapshot):
        yield from warn_pending_fence(snapshot.pending_fence, (snapshot.active_run,) if snapshot.active_run else ())
    if snapshot.unwatched_warning:
        yield snapshot.unwatched_warning
    if snapshot.mode is RunMode.UNPLANNED:
        yield from _warn_unplanned(snapshot)
    yield from clock_skew.warn_clock_skew(snapshot)
    yield from _warn_failed_partitions(snapshot)
    yield from failover_scope.warn_left_behind(snapshot)
    yield from warn_closed_topics(snapshot.mirror, snapshot.closed_topics)
    if never_copied := trimmed_offsets.format_never_copied(snapshot.statuses):
        yield (
            f"{snapshot.mirror.source} deleted offsets before they were copied, and {snapshot.mirror.destination} never"
            f" had their records: {never_copied}"
        )
    if can_lose(snapshot):
        yield from list_loss_warnings(snapshot)
    if isinstance(snapshot.source, SourceSnapshot):
        yield from _warn_source(snapshot, snapshot.source)
    yield from _warn_groups_left(snapshot)
    yield from fence_limits.warn_foreign_authorizers(snapshot)
    if snapshot.mode is RunMode.PLANNED:
        yield from _warn_long_standstill(snapshot.mirror.name, snapshot.lease, snapshot.now_ms)
    if isinstance(snapshot.destination, DestinationSnapshot):
        yield from _warn_destination(
            snapshot.mirror.destination, snapshot.destination, snapshot.destination_authorizer.authorizer
        )
    if snapshot.unbacked_grants:
        yield (
            f"promotion gives right(s) that nobody holds on {snapshot.mirror.source} now:"
            f" {join_limited(snapshot.unbacked_grants)}. If they were withdrawn there, run `mirrorbook sync"
            f" {snapshot.mirror.name}` first"
        )
    if snapshot.unknown_scram_users:
        yield (
            f"{join_limited(snapshot.unknown_scram_users)}: sign(s) in to {snapshot.mirror.source} by SCRAM, and"
            f" {snapshot.mirror.destination} knows no such user: applications could not sign in there. Create them"
            " there, with the passwords that they have:"
            f" `{_format_scram_user_command(snapshot.unknown_scram_users[0])}`"
        )
    for other, topics in snapshot.sibling_mirrors:
        yield (
            f"mirror {other.name} carries {topics} of these topics from {other.source} to {other.destination}: it goes"
            f" on from there without a lag, and gets nothing that is written on {snapshot.mirror.destination}. Stop it;"
            f" a failback may make topics on {other.source} anew under it"
        )
    yield from _warn_state_writers(snapshot)
    yield from (f"{problem}: it would fail, and the run go on without it" for problem in snapshot.hook_problems)
    yield from (f"{problem}: the run would stop there" for problem in snapshot.fence_command_problems)


def _format_scram_user_command(user: str) -> str:
    entity = ["--alter", "--entity-type", "users", *format_option("--entity-name", user)]
    return format_shell_command("kafka-configs.sh", *entity, "--add-config", "SCRAM-SHA-512=[password=...]")


def _warn_differences(snapshot: MirrorSnapshot) -> Iterator[str]:
    mirror, differences = snapshot.mirror, find_differences(snapshot.verification, snapshot.statuses)
    different = [difference for difference in differences if not difference.kind.startswith(UNREADABLE_KIND_PREFIX)]
    unreadable = [difference for difference in differences if difference.kind.startswith(UNREADABLE_KIND_PREFIX)]
    advice = f"this run will end at its proof, before anybody is stopped. `mirrorbook parity {mirror.name}` shows all"
    if text := format_differences(different, snapshot.now_ms):
        finding = f"THE COPY DIFFERS from {mirror.source} in {text}"
        unplanned_text = f"{finding}. Applications would get what {mirror.destination} has"
        yield unplanned_text if snapshot.mode is RunMode.UNPLANNED else f"{finding}: {advice}"
    if text := format_differences(unreadable, snapshot.now_ms):
        finding = f"CANNOT BE READ, and so not compared: {text}"
        unplanned_text = f"{finding}. What is unreadable on {mirror.destination}, applications could not read either"
        yield unplanned_text if snapshot.mode is RunMode.UNPLANNED else f"{finding}: {advice}"


def _warn_long_standstill(mirror: str, lease: Lease | None, now_ms: int) -> Iterator[str]:
    if lease is None or not is_lease_fresh(lease, now_ms):
        yield (
            "no data plane is running for this mirror: the whole lag is copied while writers stand still. "
            f"`mirrorbook supervise {mirror}`, or DAG mirror_replicate, copies it before"
        )
    elif lease.wait_reasons:
        yield (
            "copying waits, and while it does the run would, too, and writers stand still:"
            f" {'; '.join(lease.wait_reasons)}"
        )


def _warn_state_writers(snapshot: MirrorSnapshot) -> Iterator[str]:
    for name, side in ((snapshot.mirror.destination, snapshot.destination), (snapshot.mirror.source, snapshot.source)):
        if not isinstance(side, UnseenCluster) and side.state_writers:
            yield (
                f"{join_limited(side.state_writers)} may write or delete {OWN_TOPIC_PREFIX}_state on {name}: whoever"
                " does that decides which rights are given and taken. Deny it on topics that begin with"
                f" {OWN_TOPIC_PREFIX}"
            )


def _warn_failed_partitions(snapshot: MirrorSnapshot) -> Iterator[str]:
    lacking = find_without_copy(snapshot)
    failed = [p for p in list_failed(snapshot) if p not in lacking]
    if not failed:
        return
    listed = [f"{p}{_format_failure(snapshot.statuses[p])}" for p in failed[:MAX_LISTED_FAILED]]
    more_text = f"; and {len(failed) - MAX_LISTED_FAILED} more" if len(failed) > MAX_LISTED_FAILED else ""
    yield (
        f"{len(failed)} partition(s) FAILED and will be promoted as they are, without their newer records: "
        f"{'; '.join(listed)}{more_text}"
    )


def _format_failure(status: PartitionStatus) -> str:
    offset_text = "" if status.failed_at is None else f" at offset {status.failed_at}"
    return f"{offset_text} ({status.reason})"


def _warn_source(snapshot: MirrorSnapshot, source: SourceSnapshot) -> Iterator[str]:
    if source.stray_denials_warning:
        yield source.stray_denials_warning
    if not source.authorizer and not snapshot.source_authorizer.is_foreign:
        yield (
            f"{snapshot.mirror.source} {snapshot.source_authorizer.authorizer.no_acl_reason}: nothing can stop a writer"
            " there. Stop all producers; the run relies on stillness"
        )
    for topic in sorted({p.topic for p in snapshot.statuses} - set(source.topics) - source.hidden.topics):
        yield f"topic {topic} no longer exists or matches on {snapshot.mirror.source}: it is promoted as it is"
    if source.offline_partitions:
        yield (
            f"no leader for {join_limited(source.offline_partitions)} on {snapshot.mirror.source}: ends and lag are"
            " unknown"
        )
    if source.transactions:
        yield (
            f"open transactions on {snapshot.mirror.source} ({join_limited(source.transactions)}): the fence waits"
            " until they are over, at most their transaction timeout; and while it stands, no producer of these ids"
            " can write anything there, other topics included"
        )


def _warn_groups_left(snapshot: MirrorSnapshot) -> Iterator[str]:
    is_source_seen, groups_left = isinstance(snapshot.source, SourceSnapshot), snapshot.groups_left
    others = (
        snapshot.source.other_groups
        if isinstance(snapshot.source, SourceSnapshot)
        else groups_left.unsupported_groups
        if groups_left
        else ()
    )
    if others:
        as_of = "" if is_source_seen else ", as of the last sync"
        yield (
            f"groups of kinds that are not synced will not be there on {snapshot.mirror.destination}{as_of}: "
            f"{join_limited(others)}. Set where they start by hand, or they may leave records out"
        )
    if text := format_all_uncommitted(list_uncommitted(snapshot)):
        yield (
            f"offsets of groups could not be committed on {snapshot.mirror.destination}: {text}. Set them there by"
            " hand, or these groups may leave records out, or repeat some"
        )


def _warn_destination(name: str, destination: DestinationSnapshot, authorizer: AuthorizerKind) -> Iterator[str]:
    if not destination.authorizer and authorizer is not AuthorizerKind.FOREIGN:
        yield f"{name} {authorizer.no_acl_reason}: nothing keeps applications from writing there too early"
    if shortfalls := destination.min_isr_shortfalls:
        listed = join_limited(
            [f"{shortfall.topic} ({shortfall.in_sync} of {shortfall.needed})" for shortfall in shortfalls]
        )
        yield (
            f"fewer replicas are in sync on {name} than min.insync.replicas asks for after promotion: {listed}. Until "
            "brokers are back, producers with acks=all cannot write to partitions of theirs"
        )
    if destination.active_groups:
        yield (
            f"groups with members on {name} keep what they have committed there, whatever they did on the source:"
            f" {join_limited(destination.active_groups)}. Stop those consumers; dead ones are given up after their"
            " session timeout"
        )
    if destination.groups_unknown:
        yield (
            f"some brokers of {name} did not report their groups in time: what they have committed there, and whether "
            "they have members, is not known"
        )
    if destination.groups_unread:
        yield (
            f"{destination.groups_unread} group(s) on {name} could not be asked about, or not in time: what "
            "they have committed there, and whether they have members, is not known"
        )
    yield from destination.grant_warnings[:MAX_LISTED]
    if len(destination.grant_warnings) > MAX_LISTED:
        yield f"{len(destination.grant_warnings) - MAX_LISTED} more remarks on rights"


def _warn_unplanned(snapshot: MirrorSnapshot) -> Iterator[str]:
    mirror = snapshot.mirror
    if isinstance(snapshot.source, SourceSnapshot):
        yield (
            f"{mirror.source} answers: --mode planned loses nothing, this one gives up whatever {mirror.source} has "
            "acknowledged and is not copied yet"
        )
    if mirror.is_preparing:
        yield (
            f"failback {mirror.failback_run} was broken off before it had made all of this way home: of rights,"
            f" settings and groups {mirror.destination} has what it had at the failover; a right that {mirror.source}"
            " granted since is missing there, and one that it withdrew since the failback began may be given"
        )
    if snapshot.continues_run is not None:
        yield f"run {snapshot.continues_run} ends, and this one goes on from where it was: its fence stays" + (
            f"; all that {mirror.source} had acknowledged was copied behind it" if snapshot.is_drained else ""
        )
    if snapshot.conducted_by:
        yield (
            f"run {snapshot.continues_run} is {snapshot.conducted_by}: that process loses the mirror to this run, and"
            f" whatever it could still copy from {mirror.source} with it"
        )
    if (
        isinstance(snapshot.destination, DestinationSnapshot)
        and snapshot.destination.authorizer
        and not snapshot.promotion_grants
    ):
        yield (
            f"no rights of applications are staged, so promotion gives none on {mirror.destination}: if they need any, "
            "grant them there by hand. `mirrorbook sync`, or DAG mirror_sync, stages them while the source lives"
        )
    hidden = snapshot.destination.hidden if isinstance(snapshot.destination, DestinationSnapshot) else NO_HIDDEN_TOPICS
    if hidden.topics:
        yield (
            f"{hidden.reason}. Left out, and nobody gets any rights on them by this:"
            f" {join_limited(sorted(hidden.topics))}"
        )
    created_topics = {p.topic for p, status in snapshot.statuses.items() if status.destination_topic_id}
    for topic in sorted(find_lost_topics(snapshot) - hidden.topics - created_topics):
        yield (
            f"topic {topic} was never created on {mirror.destination}: it is left out; `mirrorbook mirror describe "
            f"{mirror.name}` says why"
        )
    for topic in sorted((find_lost_topics(snapshot) - hidden.topics) & created_topics):
        yield (
            f"topic {topic} is gone from {mirror.destination}, or another one stands in its place: it is left out, and "
            "nobody gets any rights on it by this"
        )
    unready = sorted(p for p, s in snapshot.statuses.items() if s.state in (PartitionState.UNKNOWN, _ALIGNING))
    if unready:
        yield f"initial copy not finished, and promoted with what they hold: {join_limited(unready)}"


_ALIGNING: Final = PartitionState.LOG_ALIGNMENT


def list_plan_unknowns(snapshot: MirrorSnapshot) -> Iterator[Message]:
    # No error text here: it goes into the plan's hash, and must read the same when nothing has changed.
    if isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED:
        yield Message("source_facts_unknown", snapshot.mirror.source)
    if isinstance(snapshot.destination, UnseenCluster):
        yield Message("destination_facts_unknown", snapshot.mirror.destination)


def list_plan_figures(snapshot: MirrorSnapshot) -> FigureItems:
    if snapshot.owner:
        yield FigureKey.OWNER, snapshot.owner
    left_partitions = frozenset(failover_scope.list_left_behind(snapshot))
    lags = [lag for partition, lag in list_lags(snapshot) if partition not in left_partitions]
    yield FigureKey.PARTITIONS, len(snapshot.statuses)
    yield FigureKey.RIGHTS_GIVEN, None if snapshot.promotion_grants is None else len(snapshot.promotion_grants)
    yield FigureKey.LAG_OFFSETS, None if None in lags else sum(lag or 0 for lag in lags)
    yield from failover_scope.list_left_behind_figures(snapshot)
    yield from list_held_figures(snapshot.statuses)
    forecast = snapshot.forecast
    yield FORECAST_KEYS[snapshot.mode], forecast.seconds if forecast else None
    if forecast:
        yield FigureKey.FORECAST_BASIS, forecast.basis
    if isinstance(snapshot.destination, DestinationSnapshot):
        ids = {name: topic.id for name, topic in snapshot.destination.topics.items()}
        yield from list_proof_figures(snapshot.verification, snapshot.destination.positions, ids, snapshot.now_ms)
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
        yield FigureKey.LEASE_HEARTBEAT_S, compute_age_s(snapshot.now_ms, snapshot.lease.heartbeat_ms)
    source = snapshot.source
    if isinstance(source, SourceSnapshot) and (unread_groups := len(set(source.groups) - set(source.committed))):
        yield FigureKey.UNREAD_GROUPS, unread_groups


def list_partition_figures(snapshot: MirrorSnapshot) -> Iterator[tuple[str, Figures]]:
    left_partitions = frozenset(failover_scope.list_left_behind(snapshot))
    losses = compute_snapshot_loss(snapshot).partitions if left_partitions or can_lose(snapshot) else {}
    lags = {**(dict.fromkeys(losses) if can_lose(snapshot) else {}), **dict(list_lags(snapshot))}

    def rank(partition: Partition) -> tuple[bool, int, Partition]:
        missing = losses[partition].missing if can_lose(snapshot) else lags[partition]
        return missing is not None, -(missing or 0), partition

    for partition in nsmallest(MAX_LISTED, lags, key=rank):  # of tens of thousands: no key for each is kept
        figures: dict[FigureKey, FigureValue] = {}
        if partition in snapshot.statuses:
            figures |= {FigureKey.STATE: snapshot.statuses[partition].state, FigureKey.LAG_OFFSETS: lags[partition]}
        if partition in left_partitions:
            figures[FigureKey.LEFT_BEHIND] = True
        if can_lose(snapshot) or partition in left_partitions:
            figures |= list_partition_loss_figures(losses[partition])
        yield str(partition), figures


def list_group_figures(snapshot: MirrorSnapshot) -> Iterator[tuple[str, Figures]]:
    missing_counts = Counter(
        uncommitted.group for uncommitted in list_uncommitted(snapshot) if uncommitted.destination_offset is None
    )

    def list_missing(group: str) -> Figures:
        return {FigureKey.WITHOUT_OFFSET_PARTITIONS: missing_counts[group]} if missing_counts[group] else {}

    destination = snapshot.destination
    if isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED:
        if not isinstance(destination, DestinationSnapshot):
            return
        # One age for all groups: their offsets are synced together.
        synced_s = compute_age_s(snapshot.now_ms, snapshot.groups.synced_ms) if snapshot.groups else None
        for group in sorted(destination.committed.keys() | missing_counts.keys())[:MAX_LISTED]:
            offsets = destination.committed.get(group, {})
            behind = sum(max(0, destination.positions.get(p, o) - o) for p, o in offsets.items())
            repeats: Figures = {FigureKey.READ_AGAIN_MOST: behind} if offsets else {}
            yield group, {**repeats, **list_missing(group), FigureKey.GROUPS_SYNCED_S: synced_s}
        return
    known_offsets = (
        {} if isinstance(destination, UnseenCluster) or destination.groups_unknown else destination.committed
    )
    is_partly_known = isinstance(destination, UnseenCluster) or destination.groups_unknown or destination.groups_unread
    for group, offsets in sorted(snapshot.source.committed.items())[:MAX_LISTED]:
        figures: dict[FigureKey, FigureValue] = {FigureKey.READ_AGAIN_OFFSETS: None}
        if group in known_offsets or not is_partly_known:
            synced = known_offsets.get(group, {})
            figures[FigureKey.READ_AGAIN_OFFSETS] = sum(
                max(0, o - synced[p]) for p, o in offsets.items() if p in synced
            )
            if absent := sum(p not in synced for p in offsets):
                figures[FigureKey.NOT_SYNCED_PARTITIONS] = absent
            figures |= list_missing(group)
        yield group, {**figures, FigureKey.READ_AGAIN_AFTER_SYNC: 0}

"""Commands on an existing mirror; only runs take a mirror over otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from mirror_core.dataplane.epoch_planner import COPIED_STATES, mark_failed, to_stopped
from mirror_core.decide.command_rules import MirrorCommand, explain_failback_hold, find_moved_log_ends, is_failback_over
from mirror_core.decide.fence_state import FenceState, find_fence_state, has_failed_over
from mirror_core.decide.mirror_change import list_leaving_topics, list_paused_topics
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.mirror_topology import explain_circles
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets, list_offsets
from mirror_core.kafka.reassignment import fetch_topic_ids
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.mirrors.control import CommandPreview, ExtraChecks, retry_until_owned, take_control
from mirror_core.mirrors.control import preview_command as look_at
from mirror_core.mirrors.departures import finish_departures, to_started
from mirror_core.model.acl import Acl, AclPurpose, LedgerEntry, Permission
from mirror_core.model.config_sections import AuthorizerKind
from mirror_core.model.errors import BadRequest, MirrorError, Refused, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import DesiredState, FailureKind, Mirror, PartitionState, PartitionStatus, TopicAccess
from mirror_core.model.names import (
    HEARTBEAT_TOPIC_PREFIX,
    ClusterName,
    MirrorName,
    Offset,
    Partition,
    compile_name_pattern,
)
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import Run
from mirror_core.model.sync_state import SyncCategory
from mirror_core.model.task_messages import PartitionFailure
from mirror_core.model.text import format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.rights.acl_rules import format_acl_command
from mirror_core.state.approvals import list_used_approvals
from mirror_core.state.lease import acquire_lease, make_owner_name, observe_live_lease, release_at_end, take_over_lease
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import PartitionRecord, State, Tombstone
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter
from mirror_core.sync import mirror_sync
from mirror_core.sync.acl_ledger import delete_unshared_entries
from mirror_core.sync.circle_search import CircleFindings, search_circles
from mirror_core.sync.promotion_configs import PromotionConfigs


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionChoice:
    keep_rights: bool = False
    """Copied ACLs become the administrator's."""
    restore_settings: bool = False
    """The source's, as last synced."""


DEFAULT_DELETION: Final = DeletionChoice()
_FAILED_TOPIC_KINDS: Final = frozenset({FailureKind.RECREATED, FailureKind.DIVERGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPlan:
    copied: tuple[LedgerEntry, ...]
    promoted: bool
    """Applications are there and need the rights."""
    synced: frozenset[str]
    unsynced: frozenset[str]
    choice: DeletionChoice

    @property
    def removes_rights(self) -> bool:
        return bool(self.copied) and not self.promoted and not self.choice.keep_rights

    @property
    def restores_settings(self) -> bool:
        return bool(self.synced) and not self.promoted and self.choice.restore_settings

    def format_effects(self, mirror: Mirror) -> Iterator[str]:
        destination = mirror.destination
        if denials := sum(e.acl.permission is Permission.DENY for e in self.copied):
            rights = f"{len(self.copied)} access rights copied to {destination}, {denials} of them denials,"
        else:
            rights = f"{len(self.copied)} access rights copied to {destination}"
        if self.removes_rights:
            yield f"{rights} are withdrawn, but for those of another mirror, too; `--keep-rights` leaves them"
        elif self.copied:
            why = " since applications have moved there" if self.promoted else ""
            yield f"{rights} stay{why}: Mirrorbook forgets them, and prints the line that removes each"
        if self.restores_settings:
            yield (
                f"{len(self.synced)} topics on {destination} get the settings of {mirror.source}, as last synced: old "
                "records are deleted there as soon as their retention says so"
            )
            if self.unsynced:
                yield f"not known, and left as they are: the settings of {join_limited(sorted(self.unsynced))}"
        elif not self.promoted and (self.synced or self.unsynced):
            yield (
                f"its topics on {destination} keep a mirror topic's settings, such as retention.ms=-1: nothing is"
                " deleted there; `--restore-settings` sets what the source has"
            )


def plan_deletion(link: MirrorLink, state: State, gone: ClusterName | None, choice: DeletionChoice) -> DeletionPlan:
    mirror = link.mirror
    entries = [e for e in state.ledger_entries(mirror.name) if e.cluster == mirror.destination]
    promoted = any(e.purpose is AclPurpose.PROMOTED for e in entries) or has_failed_over(
        state.pending_fences.get(mirror.name)
    )
    departures = state.departures.get(mirror.name, {}).values()
    topics = {p.topic for p, s in state.partitions.get(mirror.name, {}).items() if s.destination_topic_id}
    topics |= {departure.topic for departure in departures if departure.access is TopicAccess.CLOSED}
    synced = frozenset(topic for topic in topics if (mirror.name, topic) in state.topic_settings)
    return DeletionPlan(
        copied=tuple(sorted((e for e in entries if e.purpose is AclPurpose.COPIED), key=lambda e: e.acl)),
        promoted=promoted or gone == mirror.source,
        synced=synced,
        unsynced=frozenset(topics) - synced,
        choice=choice,
    )


def apply_deletion(link: MirrorLink, writer: StateWriter, deletion: DeletionPlan) -> Iterator[str]:
    """Yields what is left for an administrator."""
    if not (deletion.copied or deletion.restores_settings):
        return
    with ClusterClient(link.destination) as client:
        destination_acls = describe_acls(client)
        current = frozenset[Acl]() if isinstance(destination_acls, AuthorizerOff) else destination_acls.entries
        if deletion.removes_rights and current:
            delete_unshared_entries(writer, client, deletion.copied)
        elif not deletion.removes_rights:
            bootstrap = link.destination.control["bootstrap.servers"]
            remaining = (e.acl for e in deletion.copied if e.acl in current)
            yield from (format_acl_command(acl, bootstrap=bootstrap, remove=True) for acl in remaining)
        if deletion.restores_settings:
            settings = PromotionConfigs(link, writer.state, client, deletion.synced)
            rows = [*settings.apply_before_first_record(), *settings.apply_remaining()]
            yield from (f"{row.subject} on {link.destination.name}: {row.reason}" for row in rows if not row.done)


def preview(
    link: MirrorLink,
    verb: MirrorCommand,
    lost_cluster: ClusterName | None = None,
    choice: DeletionChoice = DEFAULT_DELETION,
) -> CommandPreview:
    extra_checks = _build_extra_checks(link, verb, lost_cluster)
    command_preview = look_at(link, verb, extra_checks)
    if isinstance(extra_checks, _CircleCheck):
        return replace(command_preview, lines=(*command_preview.lines, *extra_checks.doubts))
    if verb is MirrorCommand.DELETE:
        effects = plan_deletion(link, read_state(link.destination), lost_cluster, choice).format_effects(link.mirror)
        return replace(command_preview, lines=(*command_preview.lines, *effects))
    return command_preview


@retry_until_owned
def start_mirror(link: MirrorLink) -> Mirror:
    """A stopped mirror continues if its topics still end at the LMO."""
    name = link.mirror.name
    with take_control(link, MirrorCommand.START, _build_extra_checks(link, MirrorCommand.START)) as writer:
        statuses = writer.state.partitions.get(name, {})
        leaving = list_leaving_topics(writer.state.mirrors[name], statuses)
        stopped = [s for p, s in statuses.items() if s.state is PartitionState.STOPPED and p.topic not in leaving]
        mirror = replace(writer.state.mirrors[name], desired=DesiredState.STARTED)
        writer.put(mirror, *(PartitionRecord(name, to_started(status)) for status in stopped))
        return mirror


def pause_mirror(link: MirrorLink) -> Mirror:
    return _set_desired(link, MirrorCommand.PAUSE, DesiredState.PAUSED)


def resume_mirror(link: MirrorLink) -> Mirror:
    return _set_desired(link, MirrorCommand.RESUME, DesiredState.STARTED)


def select_topics(mirror: Mirror, state: State, expressions: Sequence[str]) -> tuple[str, ...]:
    """BadRequest where it carries none."""
    patterns = [compile_name_pattern("--topics", expression) for expression in expressions]
    statuses = state.partitions.get(mirror.name, {})
    carried = {p.topic for p in statuses} - list_leaving_topics(mirror, statuses)
    applications = (topic for topic in sorted(carried) if not topic.startswith(HEARTBEAT_TOPIC_PREFIX))
    selected = tuple(topic for topic in applications if any(pattern.matches(topic) for pattern in patterns))
    if not selected:
        raise BadRequest(f"mirror {mirror.name} carries no topic that matches --topics {' '.join(expressions)!r}")
    return selected


@retry_until_owned
def pause_topics(link: MirrorLink, topics: Collection[str]) -> Mirror:
    return _set_paused_topics(link, MirrorCommand.PAUSE_TOPICS, lambda paused: paused | {*topics})


@retry_until_owned
def resume_topics(link: MirrorLink, topics: Collection[str]) -> Mirror:
    return _set_paused_topics(link, MirrorCommand.RESUME_TOPICS, lambda paused: paused - {*topics})


def _set_paused_topics(
    link: MirrorLink, verb: MirrorCommand, change: Callable[[frozenset[str]], frozenset[str]]
) -> Mirror:
    with take_control(link, verb) as writer:
        mirror = writer.state.mirrors[link.mirror.name]
        changed = replace(mirror, paused_topics=tuple(change(frozenset(mirror.paused_topics))))
        carried = list_paused_topics(changed, writer.state.partitions.get(mirror.name, {}))
        return _write_mirror(writer, replace(mirror, paused_topics=tuple(carried)))


@retry_until_owned
def throttle_mirror(link: MirrorLink, bytes_per_s: int | None) -> Mirror:
    """From the next epoch on."""
    if bytes_per_s is not None and bytes_per_s < 1:
        raise BadRequest(
            f"mirror {link.mirror.name}: a throttle of {bytes_per_s} bytes/s would copy nothing: pause it instead"
        )
    with take_control(link, MirrorCommand.THROTTLE) as writer:
        return _write_mirror(writer, replace(writer.state.mirrors[link.mirror.name], throttle=bytes_per_s))


@retry_until_owned
def run_sync(link: MirrorLink, *, only: frozenset[SyncCategory] = mirror_sync.ALL_PARTS) -> mirror_sync.SyncReport:
    with take_control(link, MirrorCommand.SYNC) as writer:
        current_link = replace(link, mirror=writer.state.mirrors[link.mirror.name])
        report = mirror_sync.sync_mirror(current_link, writer, only=only)
        if SyncCategory.TOPICS in only:
            finish_departures(current_link, writer)
            _record_failed_copies(current_link, writer, report)
        return report


def _record_failed_copies(link: MirrorLink, writer: StateWriter, report: mirror_sync.SyncReport) -> None:
    # As a data plane's next plan does. Where none runs, readiness and plans know of it by these records only.
    name, rows = link.mirror.name, {row.topic: row for row in report.rows if row.code in _FAILED_TOPIC_KINDS}

    def list_copies(state: State) -> list[PartitionStatus]:
        statuses = state.partitions.get(name, {}).values()
        return [s for s in statuses if s.partition.topic in rows and s.state in COPIED_STATES]

    copies = list_copies(writer.state)
    if not copies or observe_live_lease(link.destination, writer.state, name):
        return
    with ClusterClient(link.source) as source:
        topic_ids = fetch_topic_ids(source, {s.partition.topic for s in copies})
    if topic_ids.unreachable_brokers:  # they may know the old topic
        return
    with release_at_end(acquire_lease(link.destination, name, make_owner_name())) as lease:
        failed = list[PartitionRecord]()
        for status in list_copies(lease.state):
            topic = status.partition.topic
            kind, is_recreated = FailureKind(str(rows[topic].code)), status.source_topic_id not in topic_ids.ids[topic]
            if is_recreated is (kind is FailureKind.RECREATED):
                reason = rows[topic].reason
                failure = PartitionFailure(partition=status.partition, reason=reason, offset=None, kind=kind)
                failed.append(PartitionRecord(name, mark_failed(status, failure)))
        writer.put(*failed)


@retry_until_owned
def stop_mirror(
    link: MirrorLink, report: Callable[[str], None] = lambda line: None, *, question: str | None = None
) -> dict[Partition, Offset]:
    """Records LMOs, of FAILED partitions too; grants nothing. May be repeated.

    `question`: this uses up its approvals; where it has none, only a stop that has begun is finished. None: a person
    at a terminal asks.
    """
    name = link.mirror.name
    with take_control(link, MirrorCommand.STOP, _build_extra_checks(link, MirrorCommand.STOP)) as writer:
        mirror = writer.state.mirrors[name]
        used_approvals = list_used_approvals(writer.state, name, question) if question else []
        if question is not None and not used_approvals and mirror.desired is not DesiredState.STOPPED:
            raise Refused(
                f"mirror {name}: stop", ["it was started since it was stopped: ask again"], reason_code="not_approved"
            )
        writer.put(replace(mirror, desired=DesiredState.STOPPED, paused_topics=()), *used_approvals)
        # The data plane cannot record anything now; what its tasks still write must be below the LMO.
        with release_at_end(take_over_lease(link.destination, name, make_owner_name())) as lease:
            lease.wait_for_old_writers(report)
            statuses = lease.state.partitions.get(name, {})
            ending = [s for s in statuses.values() if s.state is not PartitionState.STOPPED]
            with ClusterClient(link.destination) as client:
                existing_topics = find_existing_topics(client, {s.partition.topic for s in ending})
                present = [s.partition for s in ending if s.partition.topic in existing_topics]
                ends = list_offsets(client, present, OffsetPoint.LOG_END) if present else {}
            # By the control id: a run that began while we waited must not find its partitions STOPPED.
            writer.put(*(PartitionRecord(name, to_stopped(status, ends.get(status.partition))) for status in ending))
    return ends


def delete_mirror(
    link: MirrorLink, lost_cluster: ClusterName | None = None, choice: DeletionChoice = DEFAULT_DELETION
) -> tuple[str, ...]:
    """Topics stay; copied rights go unless applications are there. May be repeated.

    Returns what is left to an administrator. What is on `lost_cluster` is forgotten; refused when that answers.
    """
    name = link.mirror.name
    with take_control(
        link, MirrorCommand.DELETE, _build_extra_checks(link, MirrorCommand.DELETE, lost_cluster)
    ) as writer:
        deletion = plan_deletion(link, writer.state, lost_cluster, choice)
        remaining = tuple(apply_deletion(link, writer, deletion))
        state = writer.state
        writer.put(
            Tombstone(state.mirrors[name]),
            *(Tombstone(PartitionRecord(name, s)) for s in state.partitions.get(name, {}).values()),
            *(Tombstone(entry) for entry in state.ledger_entries(name)),
            *(Tombstone(lifted) for lifted in state.lifted_entries.values() if lifted.entry.mirror == name),
            *(Tombstone(pending_fence) for pending_fence in [state.pending_fences.get(name)] if pending_fence),
            *(Tombstone(settings) for (mirror, _), settings in state.topic_settings.items() if mirror == name),
            *(Tombstone(group_sync) for mirror, group_sync in state.groups.items() if mirror == name),
            *(Tombstone(remaining) for mirror, remaining in state.uncommitted_groups.items() if mirror == name),
            *(Tombstone(offsets) for offsets in state.group_offsets.get(name, {}).values()),
            *(Tombstone(observation) for mirror, observation in state.source_observations.items() if mirror == name),
            *(Tombstone(proof) for mirror, proof in state.verifications.items() if mirror == name),
            *(Tombstone(departure) for departure in state.departures.get(name, {}).values()),
            *(Tombstone(entry) for entry in state.quotas.get(name, {}).values()),
            *(Tombstone(sign) for sign in state.checkpoints.values() if sign.run == name),
        )
    return remaining


def _list_standing_denials(link: MirrorLink, state: State, lost_cluster: ClusterName | None) -> Iterator[str]:
    """Denials that a cluster has or may have, and a pending fence."""
    name, pending_fence = link.mirror.name, state.pending_fences.get(link.mirror.name)
    purposes = (AclPurpose.FENCE, AclPurpose.DEMOTED, AclPurpose.WITHDRAWN)
    entries = [e for e in state.ledger_entries(name) if e.purpose in purposes]
    unapplied = (
        pending_fence
        if pending_fence and find_fence_state(pending_fence) is FenceState.PENDING and state.partitions.get(name)
        else None
    )
    for cluster_name in sorted(
        {e.cluster for e in entries}
        | ({lost_cluster} if lost_cluster else set())
        | ({unapplied.cluster} if unapplied else set())
    ):
        cluster, lost_hint = (
            link.config.cluster(cluster_name),
            f"If that cluster will never come back: --gone {cluster_name}",
        )
        try:
            with ClusterClient(cluster, timeout_s=TIMEOUTS.other_cluster_s) as client:
                current_id = client.metadata(()).cluster_id
                is_recorded = current_id in (link.mirror.source_id, link.mirror.destination_id)
                current_acls = describe_acls(client) if is_recorded else None
        except Unreachable as silent:
            if cluster_name != lost_cluster:
                yield (
                    f"cluster {cluster_name}: whether denials of this mirror stand there is not known: {silent}."
                    f" {lost_hint}"
                )
            continue
        if current_acls is None:
            if cluster_name != lost_cluster:
                yield (
                    f"cluster {cluster_name}: another cluster, {current_id}, answers at its address: correct that."
                    f" {lost_hint}"
                )
            continue
        if cluster_name == lost_cluster:
            yield f"cluster {cluster_name} answers: it is not gone"
        remaining = [e.acl for e in entries if e.cluster == cluster_name]
        if (
            remaining
            and isinstance(current_acls, AuthorizerOff)
            and current_acls.configured is not AuthorizerKind.KAFKA
        ):
            yield (
                f"cluster {cluster_name}: {format_count(len(remaining), 'denial')} of this mirror, such as"
                f" {min(remaining)}, may stand there: they are not looked at, since mirrorbook.yaml says `authorizer:"
                f" {current_acls.configured}`. Write `kafka` there until they are gone"
            )
        current = frozenset[Acl]() if isinstance(current_acls, AuthorizerOff) else current_acls.entries
        denied = [entry.acl for entry in entries if entry.cluster == cluster_name and entry.acl in current]
        yield from _format_denials(name, cluster, denied, pending_fence)
        if (
            unapplied
            and unapplied.cluster == cluster_name
            and (cluster.ruling.fence_command or not isinstance(current_acls, AuthorizerOff))
        ):
            yield (
                f"cluster {cluster_name} is not fenced yet: failover {unapplied.run} moved its applications away, and"
                f" nobody would keep it from taking writes. `mirrorbook mirror watch {name} --once` fences it"
            )


def _format_denials(
    name: MirrorName, cluster: ClusterConfig, denied: Collection[Acl], pending_fence: PendingFence | None
) -> Iterator[str]:
    """Does not offer to remove by hand what keeps applications away from the cluster of a failover."""
    if denied and pending_fence and has_failed_over(pending_fence) and pending_fence.cluster == cluster.name:
        yield (
            f"cluster {cluster.name} keeps {format_count(len(denied), 'denial')} since failover {pending_fence.run}:"
            " without them applications could write on both sides, so remove none by hand. When"
            f" {cluster.name} is well: `mirrorbook failback plan {name}`"
        )
        return
    for acl in denied:
        remove_command = format_acl_command(acl, bootstrap=cluster.control["bootstrap.servers"], remove=True)
        yield f"cluster {cluster.name}: {acl}: fail back, or remove it yourself: {remove_command}"


def list_closed_clusters(state: State, mirror: MirrorName, lost_cluster: ClusterName | None = None) -> Iterator[str]:
    """Closed by their own command: after the deletion nobody would know."""
    pending_fence = state.pending_fences.get(mirror)
    if (
        pending_fence is not None
        and pending_fence.action is FenceAction.LIFT
        and pending_fence.by_command
        and pending_fence.cluster != lost_cluster
    ):
        yield (
            f"cluster {pending_fence.cluster} is still closed to applications: run {pending_fence.run} was aborted, and"
            f" its unfence_command has not opened it yet. `mirrorbook mirror watch {mirror} --once` has it called. If"
            f" that cluster will never come back: --gone {pending_fence.cluster}"
        )


def list_failbacks(link: MirrorLink) -> Iterator[Finding]:
    """A source that does not answer is no obstacle."""
    with suppress(MirrorError):
        state = read_state(link.source, timeout_s=TIMEOUTS.other_cluster_s)
        find_status = partial(observe_conductor, link.source, state)
        yield from explain_failback_hold(
            link.mirror.name, state.runs.values(), find_status, partial(list_run_verbs, state)
        )


def find_failback(link: MirrorLink) -> Run | None:
    try:
        runs = read_state(link.source, timeout_s=TIMEOUTS.other_cluster_s).runs.values()
    except MirrorError:
        return None
    return next((run for run in runs if is_failback_over(link.mirror.name, run)), None)


def _list_strayed(link: MirrorLink, state: State) -> list[Finding]:
    statuses = state.partitions.get(link.mirror.name, {})
    leaving = list_leaving_topics(state.mirrors[link.mirror.name], statuses)
    stopped = [s for p, s in statuses.items() if s.state is PartitionState.STOPPED and p.topic not in leaving]
    if not stopped or has_failed_over(state.pending_fences.get(link.mirror.name)):
        return []
    with ClusterClient(link.destination) as client:
        ends = list_known_offsets(client, [s.partition for s in stopped], OffsetPoint.LOG_END)
    return list(find_moved_log_ends(stopped, ends, link.destination.name))


class _CircleCheck:
    def __init__(self, link: MirrorLink, verb: MirrorCommand) -> None:
        self._link, self._verb = link, verb
        self._findings: CircleFindings | None = None

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(map(str, self._findings.doubts)) if self._findings else ()

    def __call__(self, state: State) -> Iterator[Finding | str]:
        link = self._link
        if self._findings is None:
            self._findings = search_circles(link, {p.topic for p in state.partitions.get(link.mirror.name, {})})
        yield from explain_circles(link.mirror, self._findings.circles)
        if self._verb is MirrorCommand.START:
            yield from _list_strayed(link, state)


def _build_extra_checks(link: MirrorLink, verb: MirrorCommand, lost_cluster: ClusterName | None = None) -> ExtraChecks:
    if verb in (MirrorCommand.START, MirrorCommand.RESUME):
        return _CircleCheck(link, verb)
    if verb is MirrorCommand.DELETE:
        return lambda state: (
            *list_closed_clusters(state, link.mirror.name, lost_cluster),
            *_list_standing_denials(link, state, lost_cluster),
            *list_failbacks(link),
        )
    if verb is MirrorCommand.STOP:  # the mirror's record names its failback
        return lambda state: () if link.mirror.failback_run else list_failbacks(link)
    return lambda state: ()


@retry_until_owned
def _set_desired(link: MirrorLink, verb: MirrorCommand, desired: DesiredState) -> Mirror:
    with take_control(link, verb, _build_extra_checks(link, verb)) as writer:
        return _write_mirror(writer, replace(writer.state.mirrors[link.mirror.name], desired=desired))


def _write_mirror(writer: StateWriter, mirror: Mirror) -> Mirror:
    if mirror != writer.state.mirrors[mirror.name]:
        writer.put(mirror)
    return mirror

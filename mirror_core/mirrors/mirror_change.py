"""Changes which topics and groups a mirror carries, while it runs.

One transaction has the new filters and what becomes of topics that leave. What a dead process left is finished by the
next `mirror change`, or the next sync. Before a split, the source's state gives the denials of earlier
failbacks to the new mirror; a split that is repeated after a crash finds that done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.dataplane.epoch_planner import stop_departed, to_stopping
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.fence_state import has_failed_over
from mirror_core.decide.filters import build_acl_filter, build_group_filter, build_setting_filter, build_topic_filter
from mirror_core.decide.mirror_change import (
    ChangeInputs,
    ChangePlan,
    FilterChange,
    SplitPlan,
    build_departures,
    explain_changed_copy,
    explain_wrong_hash,
    plan_change,
    plan_split,
    split_filters,
)
from mirror_core.decide.mirror_topology import explain_circles
from mirror_core.decide.topic_settings import parse_replication_factor
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.consumer_groups import list_groups
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.mirrors.control import retry_until_owned, take_control
from mirror_core.mirrors.departures import (
    explain_unenforced,
    finish_departures,
    list_copies,
    list_stopping_partitions,
    to_started,
)
from mirror_core.mirrors.mirror_creation import (
    check_mirror_name,
    check_name_is_free,
    find_missing_literals,
    refuse_if_exists,
    take_name,
)
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.model.mirror import DesiredState, Mirror, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import MirrorName, PartitionOffsets, format_reverse_name
from mirror_core.model.pending_fence import PendingFence
from mirror_core.model.sync_state import QuotaPurpose, SyncAction, TopicSettings
from mirror_core.model.timing import CLOCK_TIMEOUT_S
from mirror_core.state.lease import find_live_lease, make_owner_name, release_at_end, take_over_lease
from mirror_core.state.mirror_link import MirrorLink, check_cluster_ids, is_source_alive
from mirror_core.state.run_heartbeat import hold_turn
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from mirror_core.state.state_topic import read_complete_state
from mirror_core.state.writer import StateWriter, make_control_id
from mirror_core.sync.acl_ledger import is_on_topics
from mirror_core.sync.acl_sync import close_released_topics, sync_acls
from mirror_core.sync.circle_search import search_circles
from mirror_core.sync.mirror_topics import create_missing_topics, list_mirror_topics, sync_configs

FINISH_TIMEOUT_S: Final = 180.0
"""Two long epochs of a data plane that compares logs."""
_POLL_S: Final = 0.5
_SILENT_PROBES: Final = 3
"""One may have met a busy moment of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChange:
    inputs: ChangeInputs
    plan: ChangePlan


def prepare_change(link: MirrorLink, state: State, change: FilterChange) -> PreparedChange:
    """Changes nothing. The source is not needed to finish an earlier change, or to release."""
    mirror = state.mirrors[link.mirror.name]
    changed = change.apply(mirror)
    build_group_filter(changed)  # report a bad expression now
    build_acl_filter(changed, (), ())
    build_setting_filter(changed)
    parse_replication_factor(changed.replication_factor, 1)
    departures = state.departures.get(mirror.name, {})
    statuses = state.partitions.get(mirror.name, {})
    source_view = _SourceView()
    is_failed_over = has_failed_over(state.pending_fences.get(mirror.name))
    if change.has_filters and not is_failed_over:  # else it is refused, also without the source
        source_view = _look_at_source(replace(link, mirror=changed), mirror, state)
    with ClusterClient(link.destination) as client:
        topics = client.metadata({p.topic for p in statuses} | departures.keys()).topics
        departed = [s.partition for d in departures.values() for s in d.statuses if s.partition.topic in topics]
        ends = list_known_offsets(client, departed, OffsetPoint.LOG_END) if departed else {}
        unenforced = explain_unenforced(client)
    inputs = ChangeInputs(
        mirror=mirror,
        statuses=statuses,
        departures=departures,
        source_topics=source_view.topics,
        source_groups=source_view.groups,
        right_starts=source_view.right_starts,
        right_stops=source_view.right_stops,
        destination_ids={name: topic.id for name, topic in topics.items()},
        destination_ends=ends,
        unenforced=unenforced,
        has_failed_over=is_failed_over,
        problems=source_view.problems,
    )
    return PreparedChange(inputs=inputs, plan=plan_change(change, inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceView:
    """By the new filters. None: not known."""

    topics: frozenset[str] = frozenset()
    groups: frozenset[str] | None = None
    right_starts: tuple[str, ...] | None = ()
    right_stops: tuple[str, ...] | None = ()
    problems: tuple[str, ...] = ()
    """Why topics that start cannot be copied."""


def _look_at_source(link: MirrorLink, before: Mirror, state: State) -> _SourceView:
    mirror = link.mirror
    departed = state.departures.get(mirror.name, {}).keys()
    recorded = {p.topic for p in state.partitions.get(mirror.name, {})}
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        check_cluster_ids(link, source, destination)
        matching = list_mirror_topics(link, source)
        missing = [t for t in find_missing_literals(mirror, matching) if t not in before.topics]
        if missing:
            raise BadRequest(
                f"unknown topic {missing[0]!r}: cluster {link.source.name} has none of this name that"
                f" {link.source.user() or 'this principal'} may DESCRIBE (or --exclude-topics takes it out)"
            )
        was_carried = build_topic_filter(before)
        starting = {n: view for n, view in matching.items() if n not in recorded | departed and n not in was_carried}
        placement = create_missing_topics(link, state, source, destination, starting, dry_run=True)
        try:
            groups = frozenset(list_groups(source))
        except MirrorError:
            groups = None
        right_starts, right_stops = _compare_rights(
            link, before, state, source, destination, recorded & matching.keys(), groups
        )
    circles = search_circles(link, recorded)
    return _SourceView(
        topics=frozenset(matching),
        groups=groups,
        right_starts=right_starts,
        right_stops=right_stops,
        problems=(*placement.refused.values(), *map(str, explain_circles(mirror, circles.circles))),
    )


def _compare_rights(
    link: MirrorLink,
    before: Mirror,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Set[str],
    groups: Set[str] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]] | tuple[None, None]:
    """What a sync by the new filters would create and remove."""
    if before.right_filters == link.mirror.right_filters:
        return (), ()
    if groups is None:
        return None, None
    rows_before, rows_after = (
        sync_acls(
            replace(link, mirror=mirror),
            state,
            None,
            source,
            destination,
            topics,
            sorted(group for group in groups if group in build_group_filter(mirror)),
        )
        for mirror in (before, link.mirror)
    )
    starts, stops = (
        {r.subject for r in rows_after if r.action is action} - {r.subject for r in rows_before if r.action is action}
        for action in (SyncAction.CREATE, SyncAction.REMOVE)
    )
    return tuple(sorted(starts)), tuple(sorted(stops))


@retry_until_owned
def change_mirror(link: MirrorLink, change: FilterChange, plan_hash: str) -> ChangePlan:
    """Only records the planned change; `finish_change` goes on with it."""
    with take_control(link, MirrorCommand.CHANGE) as writer:
        prepared = prepare_change(link, writer.state, change)
        inputs, plan = prepared.inputs, prepared.plan
        if reasons := (*plan.refused, *explain_wrong_hash(plan, plan_hash)):
            raise Refused(f"mirror {link.mirror.name}: change", reasons, reason_code="change_refused")
        if plan.unfinished:
            return plan
        reopened = [inputs.departures[topic] for topic in plan.returns]
        returning = _close_returning_topics(link, writer, reopened)
        changed = change.apply(inputs.mirror)
        records: list[StateRecord | Tombstone] = [changed]
        records += (PartitionRecord(changed.name, status) for status in returning)
        records += (Tombstone(departure) for departure in reopened)
        records += build_departures(change, plan, inputs, writer.now_ms())
        writer.put(*records)
    return plan


def _close_returning_topics(
    link: MirrorLink, writer: StateWriter, departures: list[TopicDeparture]
) -> Iterator[PartitionStatus]:
    """Closes topics that were released, and looks once more that nobody has written there."""
    if not departures:
        return iter(())
    released = [d for d in departures if d.access is TopicAccess.RELEASED]
    if released:
        # First: killed from here on, whoever finishes the change gives applications the topic back.
        writer.put(*(replace(departure, is_done=False) for departure in released))
        close_released_topics(link, writer, [departure.topic for departure in released])
    with ClusterClient(link.destination) as destination:
        copies = list_copies(destination, [departure.topic for departure in departures])
        if copies.disputed:
            raise Refused(
                f"mirror {link.mirror.name}: change",
                map(_format_disputed, sorted(copies.disputed)),
                reason_code="copy_disputed",
            )
        restored = {d.topic: copies.listed[d.topic] for d in released if d.topic in copies.listed}
        _restore_mirror_settings(link, writer, destination, restored)
        partitions = [s.partition for d in departures for s in d.statuses if d.topic in copies.listed]
        ends = list_known_offsets(destination, partitions, OffsetPoint.LOG_END) if partitions else {}
    ids = {name: topic.id for name, topic in copies.listed.items()}
    reasons = [
        line
        for departure in departures
        for line in explain_changed_copy(departure, ids.get(departure.topic), ends, link.destination.name)
    ]
    if reasons:
        if released:  # applications were quicker: they get it back
            finish_departures(link, writer)
        raise Refused(f"mirror {link.mirror.name}: change", reasons, reason_code="copy_changed")
    is_stopped = writer.state.mirrors[link.mirror.name].desired is DesiredState.STOPPED  # `mirror start` starts them
    statuses = [status for departure in departures for status in departure.statuses]
    return iter(statuses if is_stopped else map(to_started, statuses))


def _restore_mirror_settings(
    link: MirrorLink, writer: StateWriter, destination: ClusterClient, topics: Mapping[str, TopicMetadata]
) -> None:
    """Before anything is copied: retention, for one, would delete what is old."""
    if not topics:
        return
    with ClusterClient(link.source) as source:
        check_cluster_ids(link, source, destination)
        config_sync = sync_configs(link, writer.state, source, destination, topics, dry_run=False)
    if config_sync.new_settings:
        writer.put(*config_sync.new_settings)
    undone = [
        f"topic {topic}: {link.destination.name} refuses {key}: {error}"
        for topic, errors in sorted(config_sync.refused.items())
        for key, error in sorted(errors.items())
    ]
    unread = topics.keys() - {record.topic for record in config_sync.new_settings}
    if undone or unread:
        raise Refused(
            f"mirror {link.mirror.name}: change",
            [*undone, *map(_format_disputed, sorted(unread))],
            reason_code="mirror_settings_refused",
        )


def _format_disputed(topic: str) -> str:
    return f"topic {topic}: brokers do not agree yet whether it exists: try again"


def finish_change(
    link: MirrorLink, report: Callable[[str], None] = lambda line: None, *, timeout_s: float = FINISH_TIMEOUT_S
) -> bool:
    """Waits until the data plane has dropped topics that leave, and releases them. May be repeated.

    Does it itself where no data plane runs, or the source is silent: an unplanned failover waits for this. False after
    the timeout: the next sync goes on.
    """
    deadline, is_reported, silent_probes = time.monotonic() + timeout_s, False, 0
    while True:
        state = read_complete_state(link.destination)
        state.require_readable(link.mirror.name)
        if not list_stopping_partitions(state, link):
            break
        is_silent = silent_probes >= _SILENT_PROBES
        if not is_silent and find_live_lease(
            state, link.mirror.name, measure_clock_ahead_ms(link.destination, timeout_s=CLOCK_TIMEOUT_S)
        ):
            silent_probes = 0 if is_source_alive(link) else silent_probes + 1
            if time.monotonic() > deadline and not silent_probes:
                return False
            if not is_reported:
                report("waiting until the data plane has dropped what leaves: at its next plans")
                is_reported = True
            time.sleep(_POLL_S)
            continue
        if is_silent:
            report(f"cluster {link.source.name} is silent, so the data plane cannot plan: taking its place")
        _stop_leaving(link, report, take_over=is_silent)
        if list_stopping_partitions(read_complete_state(link.destination), link):  # no leader on the destination
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    for line in _finish_owned(link):
        report(line)
    return True


@retry_until_owned
def _finish_owned(link: MirrorLink) -> list[str]:
    with take_control(link, MirrorCommand.CHANGE) as writer:
        return finish_departures(link, writer)


@retry_until_owned
def _stop_leaving(link: MirrorLink, report: Callable[[str], None], *, take_over: bool) -> None:
    """Takes the data plane's lease, so that none begins meanwhile. `take_over`: from a live one."""
    name = link.mirror.name
    with take_control(link, MirrorCommand.CHANGE) as writer:
        ahead_ms = measure_clock_ahead_ms(link.destination, timeout_s=CLOCK_TIMEOUT_S)
        if not take_over and find_live_lease(writer.state, name, ahead_ms):
            return
        with release_at_end(take_over_lease(link.destination, name, make_owner_name())) as lease:
            lease.wait_for_old_writers(report)
            statuses = lease.state.partitions.get(name, {})
            stopping = {p: to_stopping(statuses[p]) for p in list_stopping_partitions(lease.state, link)}
            with ClusterClient(link.destination) as client:
                stopped = stop_departed(client, stopping)
            # By the control id: a run that began while we waited must not find its partitions STOPPED.
            writer.put(*(PartitionRecord(name, status) for status in {**stopping, **stopped}.values()))


def prepare_split(link: MirrorLink, state: State, into: str, topics: tuple[str, ...]) -> SplitPlan:
    """Reads both clusters' states, and the source's topics; changes nothing."""
    check_mirror_name(into)
    mirror, pending_fence = state.mirrors[link.mirror.name], state.pending_fences.get(link.mirror.name)
    _, new = split_filters(mirror, MirrorName(into), topics)
    refuse_if_exists(new, state)
    check_name_is_free(link.config, new)
    is_failed_over, source_topics = has_failed_over(pending_fence), frozenset[str]()
    if not is_failed_over:  # else it is refused, also without the source
        with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
            check_cluster_ids(link, source, destination)
            source_topics = frozenset(list_mirror_topics(replace(link, mirror=new), source))
    inputs = ChangeInputs(
        mirror=mirror,
        statuses=state.partitions.get(mirror.name, {}),
        departures=state.departures.get(mirror.name, {}),
        source_topics=source_topics,
        destination_ids={},
        destination_ends={},
        has_failed_over=is_failed_over,
        problems=tuple(_list_split_problems(link, pending_fence, into)),
        together=link.config.consistency_groups(mirror.name),
    )
    return plan_split(MirrorName(into), topics, inputs)


def _list_split_problems(link: MirrorLink, pending_fence: PendingFence | None, into: str) -> Iterator[str]:
    name, config = link.mirror.name, link.config
    if pending_fence is not None and not has_failed_over(pending_fence):
        yield (
            f"the fence of run {pending_fence.run} is yet to be lifted on {pending_fence.cluster}:"
            f" `mirrorbook mirror watch {name} --once`"
        )
    if config.deletion_hold_ms(MirrorName(into)) < config.deletion_hold_ms(name):
        yield (
            f"`hold_deletions` is longer for {name} than for {into}, which would let go what {name} holds: set it for"
            f" {into} in {config.path}, on every host"
        )


@retry_until_owned
def split_mirror(
    link: MirrorLink,
    into: str,
    topics: tuple[str, ...],
    plan_hash: str,
    report: Callable[[str], None] = lambda line: None,
) -> SplitPlan:
    """Takes the data plane's lease: what is still under way there can neither append to a topic that moves, nor record
    it under this mirror's name.
    """
    name = link.mirror.name
    with (
        take_control(link, MirrorCommand.SPLIT) as writer,
        release_at_end(take_over_lease(link.destination, name, make_owner_name())) as lease,
    ):
        lease.wait_for_old_writers(report)
        plan = prepare_split(link, lease.state, into, topics)
        if reasons := (*plan.refused, *explain_wrong_hash(plan, plan_hash)):
            raise Refused(f"mirror {name}: split", reasons, reason_code="split_refused")
        remaining, new = split_filters(lease.state.mirrors[name], MirrorName(into), topics)
        new = replace(new, created_ms=writer.now_ms())
        moved = {*plan.moved, *plan.departed}
        with take_name(new, link.destination) as new_writer, hold_turn(new_writer, MirrorCommand.SPLIT):
            # By this mirror's control id: a run that began while we waited must find its denials and its partitions.
            writer.put(lease.state.mirrors[name])
            _move_source_entries(link, new.name, moved)
            writer.put(remaining, new, *_list_split_records(lease.state, name, new, moved))
    return plan


def _list_split_records(
    state: State, name: MirrorName, new: Mirror, topics: Set[str]
) -> Iterator[StateRecord | Tombstone]:
    """What is about these topics moves. Rights and quotas that others want, too, are both mirrors' until the next sync
    of each. Nothing that is dated by when it was recorded.
    """
    statuses = state.partitions.get(name, {})
    moved: list[PartitionRecord | TopicDeparture | TopicSettings] = [
        *(PartitionRecord(name, s) for p, s in statuses.items() if p.topic in topics),
        *(departure for topic, departure in state.departures.get(name, {}).items() if topic in topics),
        *(settings for (mirror, topic), settings in state.topic_settings.items() if mirror == name and topic in topics),
    ]
    for record in moved:
        yield Tombstone(record)
        yield replace(record, mirror=new.name)
    yield from _move_entries(state, name, new.name, topics)
    for entry in state.ledger_entries(name):
        if entry.purpose in (AclPurpose.COPIED, AclPurpose.STAGED) and not is_on_topics(entry.acl, topics):
            yield replace(entry, mirror=new.name)
    for quota in state.quotas.get(name, {}).values():
        if quota.purpose is QuotaPurpose.STAGED:
            yield replace(quota, mirror=new.name)
    for group in state.group_offsets.get(name, {}).values():
        offsets, clamped_from = (_select_topics(rows, topics) for rows in (group.offsets, group.clamped_from))
        if offsets.topics:
            yield replace(group, mirror=new.name, offsets=offsets, clamped_from=clamped_from)
    if proof := state.verifications.get(name):
        yield proof.forget_partitions({p for p in statuses if p.topic in topics})
        yield replace(proof.forget_partitions({p for p in statuses if p.topic not in topics}), mirror=new.name)


def _move_source_entries(link: MirrorLink, new: MirrorName, topics: Set[str]) -> None:
    """Otherwise the new mirror's next failback would take them for another's."""
    name = link.mirror.name
    if any(_move_entries(read_complete_state(link.source), name, new, topics)):
        with StateWriter(link.source, make_control_id(format_reverse_name(name))) as writer:
            writer.put(*_move_entries(writer.state, name, new, topics))


def _move_entries(
    state: State, name: MirrorName, new: MirrorName, topics: Set[str]
) -> Iterator[LedgerEntry | Tombstone]:
    names = {name: new, format_reverse_name(name): format_reverse_name(new)}
    for entry in state.ledger.values():
        if entry.mirror in names and is_on_topics(entry.acl, topics):
            yield Tombstone(entry)
            yield replace(entry, mirror=names[entry.mirror])


def _select_topics(offsets: PartitionOffsets, topics: Set[str]) -> PartitionOffsets:
    return PartitionOffsets(tuple(row for row in offsets.topics if row[0] in topics))

"""Snapshots both clusters for a plan."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from mirror_core.copy.log_inspection import find_foreign_writes
from mirror_core.decide.acl_plan import (
    STAGED_PURPOSES,
    ScramUsers,
    find_unbacked_grants,
    find_unknown_scram_users,
    plan_promotion_grants,
    predict_synced_ledger,
)
from mirror_core.decide.clock_skew import (
    compute_observer_ahead_ms,
    find_leader_ahead_ms,
    to_broker_clock_ms,
    to_owner_clock_ms,
)
from mirror_core.decide.drills import forecast_standstill
from mirror_core.decide.fence_limits import warn_stray_denials
from mirror_core.decide.filters import (
    build_acl_filter,
    build_group_filter,
    build_promotion_filter,
    build_topic_filter,
)
from mirror_core.decide.mirror_change import apply_current_filters, list_leaving_topics, select_staying
from mirror_core.decide.mirror_snapshot import (
    NO_HIDDEN_TOPICS,
    ClusterTopic,
    DestinationSnapshot,
    HiddenTopics,
    MirrorSnapshot,
    SourceSnapshot,
    UnseenCluster,
    select_healthy,
)
from mirror_core.decide.quota_plan import NO_QUOTAS, QuotaComparison, Quotas, compare_quotas
from mirror_core.decide.truncation import select_created
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.cluster_info import fetch_client_quotas, fetch_scram_users, measure_clock_ahead_ms
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.consumer_groups import (
    count_redelivered,
    fetch_group_offsets,
    has_offline_coordinators,
    list_groups,
    list_share_groups,
)
from mirror_core.kafka.heartbeat_topic import read_newest_heartbeats
from mirror_core.kafka.log_offsets import OffsetPoint, list_available_offsets, list_offsets_confirmed
from mirror_core.kafka.progress_timeout import ProgressMonitor, local_processing
from mirror_core.kafka.topic_existence import find_hidden_topics, get_describe_grant
from mirror_core.kafka.transactions import list_open_transactions
from mirror_core.mirrors.broker_checks import explain_fence_shut_out
from mirror_core.mirrors.preflight import list_lacking_rights
from mirror_core.model.acl import Acl
from mirror_core.model.errors import MirrorError, Unreachable, format_error_location
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import DesiredState, Mirror, TopicAccess
from mirror_core.model.names import ClusterName, Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import RunMode
from mirror_core.model.timing import TIMEOUTS, UNKNOWN_NOW_MS, now_ms
from mirror_core.rights.acl_rules import SortedNames, can_change_topic
from mirror_core.rights.required_acls import ClusterRole, LackingRight, find_other_writers
from mirror_core.runbook.hook_calls import warn_unusable_fence_commands, warn_unusable_hooks
from mirror_core.state.mirror_link import MirrorLink, read_other_states
from mirror_core.state.point_of_no_return import find_holding_run
from mirror_core.state.state_records import STATE_TOPIC as STATE
from mirror_core.state.state_records import State
from mirror_core.state.watcher_heartbeat import find_watcher_status
from mirror_core.sync.acl_sync import list_copied_topics, list_promotion_warnings
from mirror_core.sync.fence_acls import find_stray_denials_on
from mirror_core.sync.principals import list_own_principals
from mirror_core.sync.promotion_configs import list_topics_below_min_isr


def find_sibling_mirrors(
    link: MirrorLink, topics: Collection[str], siblings: list[tuple[Mirror, frozenset[str]]]
) -> list[ClusterName]:
    """Appends mirrors that are not stopped; returns clusters that do not answer."""
    silent_clusters = list[ClusterName]()
    for cluster, reply in read_other_states(link):
        if isinstance(reply, MirrorError):
            silent_clusters.append(cluster)
            continue
        for mirror in reply.mirrors.values():
            shared_topics = {p.topic for p in reply.partitions.get(mirror.name, {})} & frozenset(topics)
            is_sibling = (mirror.source, mirror.destination) == (link.mirror.source, cluster)
            if shared_topics and is_sibling and mirror.desired is not DesiredState.STOPPED:
                siblings.append((mirror, frozenset(shared_topics)))
    return silent_clusters


_GROUPS_PER_REQUEST: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGroups:
    ids: tuple[str, ...] = ()
    committed: Mapping[str, Mapping[Partition, Offset]] = field(default_factory=dict)
    """Next offsets to read, on the mirror's topics; else as in `SourceSnapshot`."""
    share_groups: Mapping[str, int | None] = field(default_factory=dict)
    """As in `SourceSnapshot`."""
    joined: tuple[str, ...] = ()
    """With members, also those that have committed nothing on the mirror's topics."""
    unread: int = 0
    """Could not be read in time."""
    partly_listed: bool = False


def observe_groups(client: ClusterClient, mirror: Mirror, topics: Collection[str], *, offsets: bool) -> ObservedGroups:
    chosen = build_group_filter(mirror)
    groups = [group for name, group in sorted(list_groups(client).items()) if name in chosen]
    committed: dict[str, Mapping[Partition, Offset]] = {}
    share_ids, share_groups = list_share_groups(groups), dict[str, int | None]()
    deadline, unread = time.monotonic() + TIMEOUTS.plan_groups_s, 0
    for start in range(0, len(groups) if offsets else 0, _GROUPS_PER_REQUEST):
        if time.monotonic() > deadline:
            unread += len(groups) - start
            break
        fetched = fetch_group_offsets(client, groups[start : start + _GROUPS_PER_REQUEST])
        for error in fetched.faults.values():
            if isinstance(error, Unreachable):
                raise error
        unread += len(fetched.faults)
        for name, group_offsets in fetched.offsets.items():
            on_topics = {p: c for p, c in group_offsets.committed.items() if p.topic in topics}
            if on_topics:
                committed[name] = {p: c.progress for p, c in on_topics.items()}
            if name in share_ids:
                share_groups[name] = count_redelivered(on_topics.values())
    return ObservedGroups(
        ids=tuple(g.id for g in groups),
        committed=committed,
        share_groups=share_groups,
        joined=tuple(g.id for g in groups if not g.is_idle),
        unread=unread,
        partly_listed=has_offline_coordinators(client),
    )


def observe_cluster_groups(cluster: ClusterConfig, mirror: Mirror, topics: Collection[str]) -> ObservedGroups:
    """By connections of its own: a hanging coordinator must delay nothing else."""
    with ClusterClient(cluster, timeout_s=TIMEOUTS.plan_response_s) as client:
        return observe_groups(client, mirror, topics, offsets=True)


_POLL_S: Final = 0.5
_MAX_POLL_DELAY_S: Final = 1.0
"""If we wake this late, our process was suspended: responses may be unread."""
_log = get_logger(__name__)
T = TypeVar("T")


def take_snapshot(
    link: MirrorLink,
    state: State,
    mode: RunMode,
    *,
    offsets: bool = True,
    fences: bool = False,
    conductor: str | None = None,
) -> MirrorSnapshot:
    """Never raises: a failed or late cluster becomes `UnseenCluster`.

    `offsets`: committed group offsets, for figures only. `fences`: check whether a planned fence would shut readers
    out. `conductor`: for the forecast. Destination groups are read apart: they need every broker, and one may hang.
    """
    began = time.monotonic()
    mirror = state.mirrors.get(link.mirror.name, link.mirror)
    link = replace(link, mirror=mirror)  # its filters may have changed since it was found
    recorded = state.partitions.get(mirror.name, {})
    leaving_topics = list_leaving_topics(mirror, recorded) if mode is RunMode.UNPLANNED else frozenset()
    if leaving_topics:
        state = _drop_leaving_topics(state, mirror)
    statuses = state.partitions.get(mirror.name, {})
    partitions = tuple(select_healthy(statuses))
    positions_read = threading.Event()
    destination = Query(lambda: _snapshot_destination(link, state, positions_read, offsets=offsets))
    fences = (offsets or fences) and mode is RunMode.PLANNED
    source = Query(
        lambda: _snapshot_source(link, state, partitions, positions_read, destination, offsets=offsets, fences=fences)
    )
    clocks = {
        side.name: Query(partial(measure_clock_ahead_ms, side, timeout_s=TIMEOUTS.plan_response_s))
        for side in ((link.source, link.destination) if offsets else (link.destination,))
    }
    user_queries = (
        [Query(partial(_list_scram_users, side)) for side in (link.source, link.destination)] if offsets else []
    )
    quota_queries = (
        [Query(partial(_list_client_quotas, side)) for side in (link.source, link.destination)] if offsets else []
    )
    topics = {p.topic for p in statuses}
    rights_queries = [
        Query(partial(list_lacking_rights, side, (role,), topics))
        for side, role in ((link.source, ClusterRole.SOURCE), (link.destination, ClusterRole.DESTINATION))
        if offsets and (mode is RunMode.PLANNED or role is ClusterRole.DESTINATION)
    ]
    siblings = list[tuple[Mirror, frozenset[str]]]()
    sibling_queries = [Query(partial(find_sibling_mirrors, link, topics, siblings))] if offsets else []
    deadline = time.monotonic() + TIMEOUTS.plan_cluster_idle_s
    destination_view, source_view = (
        destination.await_while_progressing(deadline),
        source.await_while_progressing(deadline),
    )
    if (
        mode is RunMode.UNPLANNED
        and isinstance(source_view, SourceSnapshot)
        and source_view.cluster_id != mirror.source_id
    ):
        # Its address may lead to another cluster by now, even the destination.
        source_view = UnseenCluster(f"its address leads to cluster {source_view.cluster_id}, not to {mirror.source_id}")
    for query in sibling_queries:
        query.await_result(deadline)
    clock_results = {name: item.await_result(deadline) for name, item in clocks.items()}
    clocks_ahead_ms = {name: offset_ms for name, offset_ms in clock_results.items() if isinstance(offset_ms, int)}
    lease, at_ms, ahead_ms = state.leases.get(mirror.name), now_ms(), clocks_ahead_ms.get(mirror.destination)
    leader_ahead_ms = find_leader_ahead_ms(at_ms, ahead_ms, state.list_leader_times_ms(mirror.name))
    owner_now_ms = to_owner_clock_ms(at_ms, ahead_ms, lease, state.find_append_time_ms(lease))
    owner_now_ms = owner_now_ms if leader_ahead_ms is None else UNKNOWN_NOW_MS
    observation = apply_current_filters(mirror, statuses, state.find_observation(mirror.name))
    rights = compute_promotion_rights(link, state, mode, source_view, destination_view)
    source_topics = source_view.topics if isinstance(source_view, SourceSnapshot) else {}
    matching = (
        Partition(topic, index) for topic, topic_view in source_topics.items() for index in range(topic_view.partitions)
    )
    return MirrorSnapshot(
        mirror=mirror,
        mode=mode,
        took_ms=round((time.monotonic() - began) * 1000),
        statuses=statuses,
        source=source_view,
        destination=destination_view,
        lease=lease,
        active_run=find_holding_run(state, mirror.name),
        pending_fence=state.pending_fences.get(mirror.name),
        watcher_alarms=find_watcher_status(state, mirror.name, clocks_ahead_ms.get(mirror.destination)).alarms,
        grants=rights.bound,
        promotion_grants=rights.given,
        unbacked_grants=rights.unbacked,
        excluded_principals=rights.excluded,
        forecast=forecast_standstill(state.runs.values(), state.steps_of, mirror.name, mode, conductor),
        now_ms=owner_now_ms,
        owner_ahead_ms=owner_now_ms - to_broker_clock_ms(at_ms, ahead_ms),
        leader_ahead_ms=leader_ahead_ms,
        clocks_ahead_ms=clocks_ahead_ms,
        hooks={hook.name: hook.description for hook in link.config.hooks(mirror.name)},
        unusable_hooks=tuple(warn_unusable_hooks(link.config, mirror.name)),
        unusable_fence_commands=tuple(warn_unusable_fence_commands(link)),
        source_authorizer=link.source.ruling,
        destination_authorizer=link.destination.ruling,
        source_observation=observation,
        observer_ahead_ms=compute_observer_ahead_ms(
            observation.at_ms if observation else None, state.find_append_time_ms(observation)
        ),
        verification=state.verifications.get(mirror.name),
        groups=state.find_group_sync(mirror.name),
        groups_left=state.uncommitted_groups.get(mirror.name),
        own_group_offsets=tuple(state.group_offsets.get(mirror.name, {}).values()),
        refused_settings=state.list_refused_settings(mirror.name),
        sibling_mirrors=tuple(
            (query, len(topics)) for query, topics in sorted(siblings, key=lambda item: item[0].name)
        ),
        owner=link.config.owner(mirror.name),
        rto_s=link.config.rto_s(mirror.name),
        closed_topics=_list_closed_topics(state, mirror, leaving_topics),
        leaving_topics=tuple(sorted(leaving_topics)),
        consistency_groups=link.config.consistency_groups(mirror.name),
        unmirrored=tuple(sorted(p for p in matching if p not in statuses)),
        unknown_scram_users=_list_unknown_principals(
            link, state, *(item.await_result(deadline) for item in user_queries)
        )
        if user_queries
        else {},
        lacking_rights=collect_lacking_rights(rights_queries, deadline),
        quotas=_compare_quotas(state, mirror, *(item.await_result(deadline) for item in quota_queries)),
    )


def collect_lacking_rights(
    queries: Iterable[Query[tuple[LackingRight, ...]]], deadline: float
) -> tuple[LackingRight, ...]:
    results = [query.await_result(deadline) for query in queries]
    return tuple(right for rights in results if not isinstance(rights, UnseenCluster) for right in rights)


def _drop_leaving_topics(state: State, mirror: Mirror) -> State:
    staying = dict(select_staying(mirror, state.partitions.get(mirror.name, {})))
    return replace(state, partitions={**state.partitions, mirror.name: staying})


def _list_closed_topics(state: State, mirror: Mirror, leaving_topics: Collection[str]) -> tuple[str, ...]:
    departures = state.departures.get(mirror.name, {}).values()
    return tuple(
        sorted(d.topic for d in departures if d.access is TopicAccess.CLOSED and d.topic not in leaving_topics)
    )


@dataclass(slots=True)
class Query(Generic[T]):
    """A request in its own thread, abandoned if it hangs.

    Our own defects are reported, and hide the cluster like silence.
    """

    request: Callable[[], T]
    _results: list[T | UnseenCluster] = field(default_factory=list)
    _thread: threading.Thread = field(init=False)
    _began: float = field(default_factory=time.monotonic)
    _progress: ProgressMonitor = field(default_factory=ProgressMonitor)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._progress.activate():
                self._results.append(self.request())
        except MirrorError as error:
            self._results.append(UnseenCluster(str(error)))
        except Exception as error:  # noqa: BLE001 - reported by type only
            description = f"a defect of Mirrorbook: {format_error_location(error)}"
            _log.error("a look at a cluster failed by %s", description)
            self._results.append(UnseenCluster(description))

    def await_result(self, deadline: float) -> T | UnseenCluster:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        waited_s = max(0.0, deadline - self._began)
        return self._results[0] if self._results else UnseenCluster(f"no complete answer within {waited_s:.0f} s")

    def await_while_progressing(self, deadline: float) -> T | UnseenCluster:
        """As `await_result`, but the limit is for silence: each response extends it."""
        patience_s, limit = deadline - self._began, self._began + TIMEOUTS.plan_cluster_total_s
        polled_at, wait_s, awake_at = time.monotonic(), 0.0, -math.inf
        soonest = polled_at + _POLL_S  # our process may have been suspended while waiting for the other side
        while self._thread.is_alive():
            current_s = time.monotonic()
            if (late_s := current_s - polled_at - wait_s) > _MAX_POLL_DELAY_S:
                awake_at, limit = current_s, limit + late_s
            until_s = max(
                soonest, min(max(deadline, max(self._progress.last_progress_at(), awake_at) + patience_s), limit)
            )
            if current_s >= until_s:
                silent = deadline < until_s < limit
                reason = f"no further answer for {patience_s:.0f} s"
                return UnseenCluster(reason if silent else f"no complete answer within {until_s - self._began:.0f} s")
            polled_at, wait_s = current_s, min(until_s - current_s, _POLL_S)
            self._thread.join(wait_s)
        return self.await_result(deadline)

    def await_event(self, event: threading.Event, patience_s: float) -> None:
        """At most `patience_s` after the last response."""
        polled_at = awake_at = time.monotonic()
        wait_s = 0.0
        while not event.wait(wait_s):
            current_s = time.monotonic()
            if current_s - polled_at - wait_s > _MAX_POLL_DELAY_S:
                awake_at = current_s
            left_s = max(awake_at, self._progress.last_progress_at()) + patience_s - current_s
            if left_s <= 0:
                return
            polled_at, wait_s = current_s, min(left_s, _POLL_S)


def _list_scram_users(side: ClusterConfig) -> ScramUsers | None:
    with ClusterClient(side, timeout_s=TIMEOUTS.plan_response_s) as client:
        return fetch_scram_users(client)


def _list_client_quotas(side: ClusterConfig) -> Quotas | None:
    with ClusterClient(side, timeout_s=TIMEOUTS.plan_response_s) as client:
        return fetch_client_quotas(client)


def _compare_quotas(state: State, mirror: Mirror, *sides: Quotas | UnseenCluster | None) -> QuotaComparison:
    known = [quotas for quotas in sides if quotas is not None and not isinstance(quotas, UnseenCluster)]
    if len(known) < 2:
        return NO_QUOTAS
    return compare_quotas(known[0], known[1], state.quotas.get(mirror.name, {}).values())


class _PromotionRights(NamedTuple):
    bound: tuple[str, ...]
    given: tuple[Acl, ...] | None
    unbacked: tuple[Acl, ...]
    excluded: tuple[str, ...]
    """Principals with rights to change the topics on the source that the mirror does not sync."""


def compute_promotion_rights(
    link: MirrorLink,
    state: State,
    mode: RunMode,
    source: SourceSnapshot | UnseenCluster,
    destination: DestinationSnapshot | UnseenCluster,
) -> _PromotionRights:
    mirror, own_principal_names = link.mirror, list_own_principals(link)
    entries = (e for e in state.ledger_entries(mirror.name) if e.cluster == mirror.destination)
    topics, groups = {p.topic for p in state.partitions.get(mirror.name, {})}, state.group_offsets.get(mirror.name, {})
    acl_filter = build_acl_filter(mirror, topics, groups)
    promotion_filter = build_promotion_filter(mirror, topics, groups)
    ledger = tuple(e for e in entries if e.acl in promotion_filter)
    all_grants = source.grants if isinstance(source, SourceSnapshot) else ()
    carried_grants = tuple(acl for acl in all_grants if acl in acl_filter)
    source_acls = carried_grants if isinstance(source, SourceSnapshot) and source.authorizer else None
    bound_acls = [e.acl for e in ledger if e.purpose in STAGED_PURPOSES]
    if mode is RunMode.PLANNED and isinstance(source, SourceSnapshot):
        bound_acls = list(carried_grants)
    if mode is RunMode.PLANNED and source_acls is not None:
        ledger = predict_synced_ledger(ledger, mirror, source_acls)
    granted = None
    if isinstance(destination, DestinationSnapshot) and destination.authorizer:
        existing_topics = list_copied_topics(state).union(destination.topic_names)
        granted = plan_promotion_grants(ledger, topics, existing_topics, own_principal_names).grants
    return _PromotionRights(
        bound=tuple(sorted(map(str, bound_acls))),
        given=granted,
        unbacked=() if source_acls is None else find_unbacked_grants(ledger, topics, source_acls),
        excluded=tuple(sorted({acl.principal for acl in all_grants if acl not in acl_filter})),
    )


def _list_unknown_principals(
    link: MirrorLink,
    state: State,
    source_users: ScramUsers | UnseenCluster | None,
    destination_users: ScramUsers | UnseenCluster | None,
) -> dict[str, tuple[str, ...]]:
    entries = [e for e in state.ledger_entries(link.mirror.name) if e.cluster == link.mirror.destination]
    if isinstance(source_users, UnseenCluster) or isinstance(destination_users, UnseenCluster):
        return {}
    return find_unknown_scram_users(entries, source_users, destination_users)


def _snapshot_source(
    link: MirrorLink,
    state: State,
    partitions: tuple[Partition, ...],
    positions_read: threading.Event,
    destination: Query[DestinationSnapshot],
    *,
    offsets: bool,
    fences: bool,
) -> SourceSnapshot:
    mirror = link.mirror
    with ClusterClient(link.source, timeout_s=TIMEOUTS.plan_response_s) as client:
        metadata = client.metadata()
        topic_names_filter = build_topic_filter(mirror)
        recorded = {p.topic for p in state.partitions.get(mirror.name, {})}.union(p.topic for p in partitions)
        hidden = _find_hidden_topics(client, recorded - metadata.topics.keys())
        topics = _to_topics({t: v for t, v in metadata.topics.items() if t in topic_names_filter and not v.internal})
        present = [p for p in partitions if p.topic in topics and p.index < topics[p.topic].partitions]
        acls = describe_acls(client)
        transactions = list_open_transactions(client, set(topics))
        groups = observe_groups(client, mirror, topics, offsets=offsets)
        own_principal_names, names = list_own_principals(link), SortedNames(topics)
        source_acls = acls.entries if isinstance(acls, BrokerAcls) else frozenset()
        grants = tuple(
            a
            for a in sorted(source_acls)
            if can_change_topic(a) and a.principal not in own_principal_names and names.has_covered(a)
        )
        # Ends after positions: else a copying mirror would seem ahead of its source.
        with local_processing():
            destination.await_event(positions_read, TIMEOUTS.plan_cluster_idle_s / 2)
        ends = list_offsets_confirmed(client, present, OffsetPoint.STABLE_END, within_s=TIMEOUTS.new_leader_s)
        starts = list_available_offsets(client, ends.offsets, OffsetPoint.START)
        return SourceSnapshot(
            cluster_id=metadata.cluster_id,
            topics=topics,
            stable_ends=ends.offsets,
            log_starts=starts.offsets,
            authorizer=not isinstance(acls, AuthorizerOff),
            transactions=tuple(t.id for t in transactions),
            groups=groups.ids,
            committed=groups.committed,
            share_groups=groups.share_groups,
            groups_unread=groups.unread,
            groups_partly_listed=groups.partly_listed,
            grants=grants,
            offline_partitions=tuple(sorted(ends.offline)),
            state_writers=_list_state_writers(link, acls),
            hidden=hidden,
            stray_denials=tuple(
                warn_stray_denials(
                    find_stray_denials_on(link, state, mirror.source, source_acls), mirror, mirror.source
                )
            ),
            fence_side_effects=explain_fence_shut_out(client, acls, topics, mirror.name) if fences else None,
        )


def _snapshot_destination(
    link: MirrorLink, state: State, positions_read: threading.Event, *, offsets: bool
) -> DestinationSnapshot:
    topic = get_heartbeat_topic(link.mirror.name)
    heartbeats = Query(lambda: read_newest_heartbeats(link.destination, topic, timeout_s=TIMEOUTS.plan_heartbeats_s))
    statuses = state.partitions.get(link.mirror.name, {})
    recorded_topics = {p.topic for p in statuses}
    groups = Query(lambda: observe_cluster_groups(link.destination, link.mirror, recorded_topics)) if offsets else None
    deadline = time.monotonic() + TIMEOUTS.plan_cluster_idle_s - 0.5
    try:
        with ClusterClient(link.destination, timeout_s=TIMEOUTS.plan_response_s) as client:
            metadata = client.metadata()
            created_topics = {p.topic for p in select_created(statuses)}  # never copied: not missing
            hidden = _find_hidden_topics(client, created_topics - metadata.topics.keys())
            topics = _to_topics({t: v for t, v in metadata.topics.items() if t in recorded_topics})
            present = [p for p in sorted(statuses) if p.topic in topics and p.index < topics[p.topic].partitions]
            positions = list_available_offsets(client, present, OffsetPoint.LOG_END, within_s=TIMEOUTS.new_leader_s)
            positions_read.set()
            starts = list_available_offsets(client, positions.offsets, OffsetPoint.START)
            acls = describe_acls(client)
            rights = list_promotion_warnings(link, state, acls, metadata.topics)
            foreign_starts = find_foreign_writes(
                client,
                state.mirrors.get(link.mirror.name, link.mirror),
                state.partitions.get(link.mirror.name, {}),
                state.find_observation(link.mirror.name),
                positions.offsets,
            )
            heartbeat_reply = heartbeats.await_result(deadline)
            group_reply = groups.await_while_progressing(deadline) if groups else ObservedGroups()
            observed = ObservedGroups() if isinstance(group_reply, UnseenCluster) else group_reply
            return DestinationSnapshot(
                cluster_id=metadata.cluster_id,
                topics=topics,
                positions=positions.offsets,
                log_starts=starts.offsets,
                authorizer=not isinstance(acls, AuthorizerOff),
                foreign_starts=foreign_starts,
                grant_warnings=rights,
                topic_names=frozenset(metadata.topics),
                committed=observed.committed,
                active_groups=observed.joined,
                groups_unknown=isinstance(group_reply, UnseenCluster),
                groups_unread=observed.unread,
                groups_partly_listed=observed.partly_listed,
                heartbeats=() if isinstance(heartbeat_reply, UnseenCluster) else heartbeat_reply,
                offline_partitions=tuple(sorted(positions.offline)),
                min_isr_shortfalls=list_topics_below_min_isr(client, link.mirror, state, metadata.topics)
                if offsets
                else (),
                state_writers=_list_state_writers(link, acls),
                hidden=hidden,
            )
    finally:
        positions_read.set()


def _list_state_writers(link: MirrorLink, acls: BrokerAcls | AuthorizerOff) -> tuple[str, ...]:
    return () if isinstance(acls, AuthorizerOff) else find_other_writers(acls.entries, STATE, list_own_principals(link))


def _find_hidden_topics(client: ClusterClient, unlisted: Collection[str]) -> HiddenTopics:
    denied = find_hidden_topics(client, unlisted)
    return HiddenTopics(denied, *get_describe_grant(client, min(denied))) if denied else NO_HIDDEN_TOPICS


def _to_topics(views: Mapping[str, TopicMetadata]) -> dict[str, ClusterTopic]:
    return {name: ClusterTopic(id=view.id, partitions=len(view.partitions)) for name, view in views.items()}


PRESUMED_DEAD: Final = UnseenCluster("for this figure it is taken for dead")


def presume_source_dead(
    snapshot: MirrorSnapshot, link: MirrorLink, state: State, *, conductor: str | None = None
) -> MirrorSnapshot:
    mirror = snapshot.mirror
    leaving_topics, state = list_leaving_topics(mirror, snapshot.statuses), _drop_leaving_topics(state, mirror)
    link = replace(link, mirror=mirror)
    rights = compute_promotion_rights(link, state, RunMode.UNPLANNED, PRESUMED_DEAD, snapshot.destination)
    return replace(
        snapshot,
        mode=RunMode.UNPLANNED,
        statuses=select_staying(mirror, snapshot.statuses),
        closed_topics=_list_closed_topics(state, mirror, leaving_topics),
        leaving_topics=tuple(sorted(leaving_topics)),
        source=PRESUMED_DEAD,
        grants=rights.bound,
        promotion_grants=rights.given,
        unbacked_grants=rights.unbacked,
        forecast=forecast_standstill(
            state.runs.values(), state.steps_of, link.mirror.name, RunMode.UNPLANNED, conductor
        ),
    )

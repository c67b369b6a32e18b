"""One sync: topics, settings, ACLs and group offsets, compared and brought over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from mirror_core.decide.clock_skew import to_owner_clock_ms
from mirror_core.decide.command_rules import explain_held_by
from mirror_core.decide.topic_settings import DEFAULT_REPLICAS, choose_replication_factor, parse_replication_factor
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.cluster_info import measure_clock_ahead_ms
from mirror_core.kafka.topic_existence import describe_denied_error, find_hidden_topics
from mirror_core.kafka.topics import describe_configs, find_wrong_configs
from mirror_core.model.errors import HeldByRun, MirrorError, Refused
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.logs import get_logger
from mirror_core.model.mirror import FailureKind, GroupSyncTime
from mirror_core.model.names import get_base_name
from mirror_core.model.run import Run
from mirror_core.model.sync_state import WRITING_ACTIONS, DriftRow, SyncAction, SyncCategory
from mirror_core.model.timing import CLOCK_TIMEOUT_S, MAX_FRESH_AGE_S, now_ms
from mirror_core.state.active_cluster import copy_announcement
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink, check_cluster_ids
from mirror_core.state.point_of_no_return import list_run_verbs
from mirror_core.state.run_heartbeat import observe_conductor
from mirror_core.state.state_records import STATE_TOPIC, State
from mirror_core.state.state_topic import STATE_TOPIC_CONFIGS, read_complete_state
from mirror_core.sync.acl_sync import sync_acls
from mirror_core.sync.mirror_topics import (
    TopicPlacement,
    apply_config_changes,
    create_missing_topics,
    list_mirror_topics,
    list_stopped_topics,
    sync_configs,
    to_change_rows,
    to_topic_row,
)
from mirror_core.sync.offset_commits import OffsetCommitter
from mirror_core.sync.offset_sync import OffsetSyncResult, list_groups_in_scope, sync_groups
from mirror_core.sync.quota_sync import sync_quotas

_log = get_logger(__name__)

ALL_PARTS: Final = frozenset(SyncCategory)


class SyncDocument(JsonDocument, frozen=True, kw_only=True):
    """Differences, and what was done about each; groups in scope always have a row."""

    mirror: str
    dry_run: bool
    parts: tuple[SyncCategory, ...]
    rows: tuple[DriftRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    mirror: str
    dry_run: bool
    parts: tuple[SyncCategory, ...]
    rows: tuple[DriftRow, ...]
    topics: frozenset[str] = frozenset()

    @property
    def refused(self) -> tuple[DriftRow, ...]:
        return tuple(row for row in self.rows if row.action is SyncAction.REFUSE)

    @property
    def pending(self) -> tuple[DriftRow, ...]:
        """Not carried out; in a dry run, all."""
        return tuple(row for row in self.rows if row.action in WRITING_ACTIONS and not row.done)

    @property
    def document(self) -> SyncDocument:
        return SyncDocument(mirror=self.mirror, dry_run=self.dry_run, parts=self.parts, rows=self.rows)


def preview_sync(link: MirrorLink, state: State, *, only: frozenset[SyncCategory] = ALL_PARTS) -> SyncReport:
    return _run_sync(link, state, None, only)


def sync_mirror(
    link: MirrorLink,
    log: JournalLog,
    *,
    only: frozenset[SyncCategory] = ALL_PARTS,
    run_id: str | None = None,
) -> SyncReport:
    """HeldByRun while another run than `run_id` holds the mirror. May be repeated."""
    active = log.state.active_run(link.mirror.name)
    if active is not None and active.id != run_id:
        raise _make_held_error(link, log.state, active)
    return _run_sync(link, log.state, log, only, run_id)


def _run_sync(
    link: MirrorLink, state: State, log: JournalLog | None, only: frozenset[SyncCategory], run_id: str | None = None
) -> SyncReport:
    rows: list[DriftRow] = []
    with ClusterClient(link.source) as source, ClusterClient(link.destination) as destination:
        check_cluster_ids(link, source, destination)
        if log is not None and only == ALL_PARTS:
            _copy_announcement_to_destination(link)
        matching_topics = list_mirror_topics(link, source)
        stopped = list_stopped_topics(link, state)
        placement = create_missing_topics(
            link, state, source, destination, matching_topics, dry_run=log is None or SyncCategory.TOPICS not in only
        )
        if SyncCategory.TOPICS in only:
            rows += [*placement.rows, *list_hidden_rows(link, state, source, matching_topics)]
            rows += _list_replica_rows(link, matching_topics, placement.ready, len(destination.brokers()))
            rows += [_to_stopped_row(name) for name in sorted(stopped & matching_topics.keys())]
        ready = placement.ready
        # Copies of topics recreated on the source keep their rights and group offsets.
        syncable_topics = {
            **ready,
            **{n: matching_topics[n] for n, kind in placement.failure_kinds.items() if kind is FailureKind.RECREATED},
        }
        if SyncCategory.CONFIGS in only:
            rows += _correct_state_topic(destination, dry_run=log is None)
            rows += _list_left_out_rows(placement) if log is None else []
            config_sync = sync_configs(link, state, source, destination, ready, dry_run=log is None)
            rows += config_sync.rows
            if log is not None and config_sync.new_settings:
                log.put(*config_sync.new_settings)
        # A mirror without topics left manages no ACLs and offsets any more.
        if {SyncCategory.ACLS, SyncCategory.QUOTAS} & only and (syncable_topics or not stopped):
            groups = list_groups_in_scope(link, source)
            topics = _list_acl_topics(syncable_topics, matching_topics, placement)
            if SyncCategory.ACLS in only:
                rows += sync_acls(link, state, log, source, destination, topics, groups)
            if SyncCategory.QUOTAS in only:
                rows += sync_quotas(link, state, log, source, destination, topics, groups)
        if SyncCategory.GROUPS in only and (syncable_topics or not stopped):
            uncopied_topics = matching_topics.keys() - syncable_topics.keys() - stopped
            if log is None:
                rows += sync_groups(
                    link, state, source, destination, syncable_topics, None, uncopied_topics=uncopied_topics
                ).rows
            else:
                # A run owns the lease: its clock is this one.
                began_ms = now_ms() if run_id else _read_owner_clock_ms(link, log.state)
                check_ownership = None if run_id else partial(_check_still_owned, link, frozenset(ready))
                with OffsetCommitter(destination, check_ownership) as commits:
                    is_followed = run_id is None and _has_live_follower(link, log.state, began_ms)
                    synced = sync_groups(
                        link,
                        log.state,
                        source,
                        destination,
                        syncable_topics,
                        commits,
                        uncopied_topics=uncopied_topics,
                        is_followed=is_followed,
                        at_ms=began_ms,
                    )
                rows += synced.rows
                _record_group_sync(link, log, began_ms, synced)
    for row in rows:
        if row.done or row.action in (SyncAction.SKIP, SyncAction.REFUSE):
            outcome = row.action if row.done else f"{row.action}, since {row.reason}"
            _log.info("%s %s: %s", row.part, row.subject, outcome, mirror=link.mirror.name)
    return SyncReport(
        mirror=link.mirror.name,
        dry_run=log is None,
        parts=tuple(part for part in SyncCategory if part in only),
        rows=tuple(rows),
        topics=frozenset(ready),
    )


def list_hidden_rows(link: MirrorLink, state: State, source: ClusterClient, listed: Collection[str]) -> list[DriftRow]:
    """DESCRIBE is denied: they are not gone."""
    recorded = {p.topic for p in state.partitions.get(link.mirror.name, {})} - list_stopped_topics(link, state)
    unlisted = recorded.difference(listed)
    denied = sorted(find_hidden_topics(source, unlisted))
    return [
        msgspec.structs.replace(
            to_topic_row(name, "", "", SyncAction.REFUSE, str(describe_denied_error(source, [name]))),
            code=FailureKind.DENIED,
        )
        for name in denied
    ]


def _list_left_out_rows(placement: TopicPlacement) -> list[DriftRow]:
    return [
        to_topic_row(f"{topic}: {key}", "", "", SyncAction.SKIP, f"left out: {why}", part=SyncCategory.CONFIGS)
        for topic, reasons in sorted(placement.refused_settings.items())
        for key, why in sorted(reasons.items())
        if topic not in placement.ready
    ]


def _list_replica_rows(
    link: MirrorLink, topics: Mapping[str, TopicMetadata], ready: Mapping[str, TopicMetadata], brokers: int
) -> Iterator[DriftRow]:
    """Topics with another replication factor than the mirror would create them with now."""
    for name, view in sorted(ready.items()):
        wanted = parse_replication_factor(link.mirror.replication_factor, topics[name].replication_factor)
        possible = choose_replication_factor(wanted, brokers)  # brokers that are down do not count
        if wanted != DEFAULT_REPLICAS and view.replication_factor not in (wanted, possible):
            yield to_topic_row(
                name,
                f"replication factor {topics[name].replication_factor}",
                f"replication factor {view.replication_factor}",
                SyncAction.KEEP,
                f"{possible} wanted; a sync moves no replicas: kafka-reassign-partitions.sh does",
            )


def _copy_announcement_to_destination(link: MirrorLink) -> None:
    """An unplanned failover queries the destination only, and its announcement has to be the later one."""
    try:
        copy_announcement(link.source, link.destination, get_base_name(link.mirror.name))
    except MirrorError as error:
        _log.info("the source's announcement of the active cluster was not copied: %s", error, mirror=link.mirror.name)


def _correct_state_topic(destination: ClusterClient, *, dry_run: bool) -> list[DriftRow]:
    """Otherwise brokers delete what is remembered of mirrors and fences."""
    described = describe_configs(destination, [STATE_TOPIC]).get(STATE_TOPIC)
    wrong = find_wrong_configs(described, STATE_TOPIC_CONFIGS)
    if described is None or not wrong:
        return []
    refused = apply_config_changes(destination, {STATE_TOPIC: wrong}, validate_only=dry_run)
    return to_change_rows(
        STATE_TOPIC, wrong, STATE_TOPIC_CONFIGS, described.effective, refused.get(STATE_TOPIC, {}), dry_run=dry_run
    )


def _make_held_error(link: MirrorLink, state: State, run: Run) -> HeldByRun:
    holder = explain_held_by(run, observe_conductor(link.destination, state, run), list_run_verbs(state, run))
    return HeldByRun(f"mirror {link.mirror.name}: sync", [holder])


def _check_still_owned(link: MirrorLink, topics: frozenset[str]) -> None:
    state, name = read_complete_state(link.destination), link.mirror.name
    active = state.active_run(name)
    if active is not None:
        raise _make_held_error(link, state, active)
    stopped = topics & list_stopped_topics(link, state)
    if stopped:
        raise Refused(
            f"mirror {name}: sync",
            [f"topic {topic} was stopped meanwhile" for topic in sorted(stopped)],
            reason_code="topic_stopped",
        )


def _read_owner_clock_ms(link: MirrorLink, state: State) -> int:
    name = link.mirror.name
    ahead_ms, lease = measure_clock_ahead_ms(link.destination, timeout_s=CLOCK_TIMEOUT_S), state.leases.get(name)
    return to_owner_clock_ms(now_ms(), ahead_ms, lease, state.find_append_time_ms(lease))


def _has_live_follower(link: MirrorLink, state: State, now_at_ms: int) -> bool:
    last_sync = state.groups.get(link.mirror.name)
    return last_sync is not None and last_sync.followed and now_at_ms - last_sync.synced_ms < MAX_FRESH_AGE_S * 1000


def _record_group_sync(link: MirrorLink, log: JournalLog, began_ms: int, synced: OffsetSyncResult) -> None:
    """A follower's record is newer than ours. A source that left groups out leaves their age as it was."""
    last_sync, new_records = log.state.groups.get(link.mirror.name), [*synced.records]
    if synced.has_read_all and (last_sync is None or last_sync.synced_ms < began_ms):
        filters = link.mirror.group_filters
        new_records.append(
            GroupSyncTime(mirror=link.mirror.name, synced_ms=began_ms, followed=False, listed_by=filters)
        )
    if new_records:
        log.put(*new_records)


def _list_acl_topics(
    ready: Mapping[str, TopicMetadata], chosen: Mapping[str, TopicMetadata], placement: TopicPlacement
) -> frozenset[str]:
    created = {row.subject for row in placement.rows if row.action is SyncAction.CREATE}
    return frozenset(ready) | (created & chosen.keys())


def _to_stopped_row(name: str) -> DriftRow:
    return DriftRow(
        part=SyncCategory.TOPICS,
        subject=name,
        action=SyncAction.SKIP,
        reason="was stopped: it is the applications' topic now, and nothing of it is synced",
    )

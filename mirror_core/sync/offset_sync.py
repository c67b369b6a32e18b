from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from mirror_core.decide.filters import build_group_filter
from mirror_core.decide.group_coverage import CommitOffset, LogBounds, date_uncommitted, decide_group_offset
from mirror_core.decide.loss_bound import find_agreed_ends
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import (
    ACTIVE_GROUP_ERRORS,
    COMMITTED_RESULTS,
    COMMITTED_WITHOUT_METADATA,
    SHARE_KIND,
    CommittedOffset,
    CommittedOffsets,
    ConsumerGroup,
    FetchedGroupOffsets,
    GroupOffsetsClient,
    fetch_group_offsets,
    has_offline_coordinators,
    list_groups,
    list_share_groups,
)
from mirror_core.kafka.log_offsets import OffsetPoint, list_offset_points
from mirror_core.kafka.share_groups import can_sync_share_groups
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.names import ClusterName, Offset, Partition
from mirror_core.model.sync_state import (
    DriftRow,
    GroupCoverage,
    SyncAction,
    SyncCategory,
    UncommittedGroupOffset,
    UnsyncedGroups,
)
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State, StateRecord, Tombstone
from mirror_core.sync.offset_commits import (
    OPEN_TRANSACTION_TEXT,
    RECREATED_TOPIC_TEXT,
    UNCOPIED_PARTITION_TEXT,
    UNCOPIED_TOPIC_TEXT,
    OffsetCommitter,
    OwnCommittedOffsets,
    commit_until_answered,
    format_refusal,
)
from mirror_core.sync.topic_errors import list_copied_source_ids
from mirror_core.wire.group_records import CONSUMER_OFFSETS_TOPIC


def list_groups_in_scope(link: MirrorLink, source: ClusterClient) -> dict[str, ConsumerGroup]:
    wanted = build_group_filter(link.mirror)
    return {name: group for name, group in list_groups(source).items() if name in wanted}


@dataclass(frozen=True, slots=True)
class OffsetSyncResult:
    rows: list[DriftRow]
    records: list[StateRecord | Tombstone]
    has_read_all: bool
    """The source told of all groups and of what they have committed."""


def sync_groups(
    link: MirrorLink,
    state: State,
    source: ClusterClient,
    destination: ClusterClient,
    topics: Collection[str],
    commits: OffsetCommitter | None,
    *,
    uncopied_topics: Collection[str] = (),
    is_followed: bool = False,
    at_ms: int = 0,
) -> OffsetSyncResult:
    """Commits offsets, clamped to the destination's logs; without `commits`, only compares.

    `uncopied_topics`: the mirror's without a copy. `at_ms`: when the sync began, by the clock of the process that
    mirrors.

    Each group in scope has a row. A fault of one group is its row's reason; an unreachable cluster raises.
    """
    partly_listed = _list_without_coordinators(source, destination)
    destination_groups, groups = list_groups(destination), list_groups_in_scope(link, source)
    partly_listed |= _list_without_coordinators(source, destination)
    own_offsets = OwnCommittedOffsets(link.mirror.name, state)
    share_groups = list_share_groups(groups.values())
    decisions = _GroupDecisions(own_offsets, share_groups, topics)
    fetched = fetch_group_offsets(source, groups.values())
    _raise_unreachable(fetched)
    has_read_all = source.name not in partly_listed and not fetched.faults
    recreated = _list_recreated_topics(
        link, state, source, {p.topic for o in fetched.offsets.values() for p in o.committed} & set(topics)
    )
    source_offsets = {
        name: (
            {p: row for p, row in offsets.committed.items() if p.topic in topics},
            sorted(p for p in offsets.unstable if p.topic in topics),
        )
        for name, offsets in sorted(fetched.offsets.items())
    }
    orphaned_offsets = _list_orphaned_offsets(link, own_offsets, groups, fetched.offsets, topics)
    unlisted = orphaned_offsets.keys() - groups.keys() if source.name in partly_listed else frozenset[str]()
    logs = _list_log_ranges(
        destination,
        {partition for committed, _ in source_offsets.values() for partition in committed},
        find_agreed_ends(state.partitions.get(link.mirror.name, {}), state.find_observation(link.mirror.name)),
    )
    known_groups = own_offsets.list_partitions().keys() if partly_listed else frozenset[str]()
    before = _fetch_before(
        destination,
        destination_groups,
        {*orphaned_offsets, *fetched.faults, *(n for n, asked in source_offsets.items() if any(asked))},
        known_groups if destination.name in partly_listed else (),
    )
    decisions.mark_orphaned(orphaned_offsets, before.offsets, groups, unlisted, source.name)
    to_commit = dict[str, dict[Partition, tuple[Offset, str]]]()
    without_share_groups = share_groups if share_groups and not can_sync_share_groups(destination) else frozenset()
    for name in sorted(fetched.faults.keys() | source_offsets.keys()):
        if name in without_share_groups:
            decisions.mark_uncommitted(name, None, _NO_SHARE_GROUPS_TEXT)
            continue
        error = before.faults.get(name)
        if isinstance(error, Unreachable):
            raise error
        offsets = before.offsets.get(name, _NO_OFFSETS)
        if name in fetched.faults:
            decisions.decide_unread(name, destination_groups.get(name), offsets, error, fetched.faults[name])
            continue
        committed, open_partitions = source_offsets[name]
        left_partitions = sorted(p for p in fetched.offsets[name].committed if p.topic in uncopied_topics)
        if left_partitions:
            decisions.skip_uncopied(name, left_partitions)
            if not (committed or open_partitions):
                continue
        if group_commits := decisions.decide_group(
            name, destination_groups.get(name), committed, open_partitions, logs, offsets, recreated, error
        ):
            to_commit[name] = group_commits
    if commits is not None:
        if is_followed:
            to_commit = _drop_moved(source, source_offsets, to_commit, decisions, share_groups)
        responses = commit_until_answered(commits, to_commit, destination, share_groups)
        decisions.apply_responses(responses, to_commit)
    recorded = state.uncommitted_groups.get(link.mirror.name, UnsyncedGroups(mirror=link.mirror.name))
    groups_left = UnsyncedGroups(
        mirror=link.mirror.name,
        uncommitted=date_uncommitted(decisions.uncommitted, recorded.uncommitted, at_ms),
        share_groups=tuple(sorted(share_groups)),
        share_groups_synced_ms=(at_ms if has_read_all else recorded.share_groups_synced_ms) if share_groups else None,
        share_groups_listed_by=link.mirror.group_filters if has_read_all else recorded.share_groups_listed_by,
    )
    records: list[StateRecord | Tombstone] = [
        Tombstone(forgotten)
        for forgotten in own_offsets.forget_other_groups({*groups, *destination_groups, *known_groups})
    ]
    records += own_offsets.pop_unwritten()
    if groups_left != recorded:
        records.append(groups_left)
    return OffsetSyncResult(sorted(decisions.rows, key=lambda row: row.subject), records, has_read_all)


def _raise_unreachable(fetched: FetchedGroupOffsets) -> None:
    for fault in fetched.faults.values():
        if isinstance(fault, Unreachable):
            raise fault


def _fetch_before(
    destination: ClusterClient,
    listed_groups: Mapping[str, ConsumerGroup],
    groups: Collection[str],
    perhaps_unlisted: Collection[str],
) -> FetchedGroupOffsets:
    """`perhaps_unlisted`: somebody may have gone on in groups that are not listed."""
    fetched = fetch_group_offsets(
        destination, [listed_groups[n] for n in sorted(groups) if n in listed_groups and listed_groups[n].is_idle]
    )
    fault = RemoteFault(format_unlisted(destination.name))
    unlisted = [name for name in perhaps_unlisted if name not in listed_groups]
    return FetchedGroupOffsets(fetched.offsets, {**fetched.faults, **dict.fromkeys(unlisted, fault)})


def _list_without_coordinators(*clusters: ClusterClient) -> frozenset[ClusterName]:
    return frozenset(cluster.name for cluster in clusters if has_offline_coordinators(cluster))


def _drop_moved(
    source: ClusterClient,
    source_offsets: Mapping[str, tuple[Mapping[Partition, CommittedOffset], Collection[Partition]]],
    to_commit: Mapping[str, Mapping[Partition, tuple[Offset, str]]],
    decisions: _GroupDecisions,
    share_groups: frozenset[str],
) -> dict[str, dict[Partition, tuple[Offset, str]]]:
    """Drops commits that would undo newer ones of the offset follower, which ignores share groups."""
    groups = {*to_commit, *decisions.groups_ahead} - share_groups
    refetched = GroupOffsetsClient(source).fetch_attempt(dict.fromkeys(groups)).offsets if groups else {}
    moved = {
        (g, p) for g in groups for p, row in source_offsets[g][0].items() if not _is_unchanged(refetched.get(g), row, p)
    }
    decisions.skip_moved(moved)
    return {g: {p: row for p, row in offsets.items() if (g, p) not in moved} for g, offsets in to_commit.items()}


def _list_orphaned_offsets(
    link: MirrorLink,
    own_offsets: OwnCommittedOffsets,
    groups: Collection[str],
    source: Mapping[str, CommittedOffsets],
    topics: Collection[str],
) -> dict[str, frozenset[Partition]]:
    """Offsets that the mirror committed and the source no longer has."""
    wanted, orphaned_offsets = build_group_filter(link.mirror), dict[str, frozenset[Partition]]()
    for group, partitions in own_offsets.list_partitions().items():
        if group not in wanted or (group in groups and group not in source):
            continue
        offsets = source.get(group, _NO_OFFSETS)
        orphaned = {p for p in partitions if p.topic in topics} - offsets.committed.keys() - offsets.unstable
        if orphaned:
            orphaned_offsets[group] = frozenset(orphaned)
    return orphaned_offsets


def _is_unchanged(refetched: CommittedOffsets | None, before: CommittedOffset, partition: Partition) -> bool:
    return refetched is not None and refetched.committed.get(partition) == before


def _list_recreated_topics(
    link: MirrorLink, state: State, source: ClusterClient, topics: Collection[str]
) -> frozenset[str]:
    """List them after offsets were read, which may be of the new topics."""
    copied_ids, topics_now = list_copied_source_ids(link, state), source.metadata(topics).topics if topics else {}
    return frozenset(
        t for t in topics if t in copied_ids and (t not in topics_now or topics_now[t].id not in copied_ids[t])
    )


class _GroupDecisions:
    def __init__(self, own_offsets: OwnCommittedOffsets, share_groups: frozenset[str], topics: Collection[str]) -> None:
        self.rows = list[DriftRow]()
        self.groups_ahead = set[str]()
        """Further on the destination than on the source."""
        self._own_offsets = own_offsets
        self._share_groups = share_groups
        self._topics = topics
        self._uncommitted = dict[tuple[str, str], UncommittedGroupOffset]()
        """By group and partition. A group's name may end as a partition's: "g" and "g orders-0"."""

    @property
    def uncommitted(self) -> tuple[UncommittedGroupOffset, ...]:
        return tuple(self._uncommitted[subject] for subject in sorted(self._uncommitted))

    def mark_uncommitted(
        self,
        group: str,
        partition: Partition | None,
        reason: str,
        source: Offset | None = None,
        committed_offset: Offset | None = None,
        coverage: GroupCoverage = GroupCoverage.REFUSED,
    ) -> None:
        subject = format_group_subject(group, partition)
        self.rows.append(to_group_row(subject, SyncAction.SKIP, source, committed_offset, reason, committed_offset))
        self._note_uncommitted(group, partition, reason, coverage, committed_offset)

    def _note_uncommitted(
        self,
        group: str,
        partition: Partition | None,
        reason: str,
        coverage: GroupCoverage,
        committed_offset: Offset | None = None,
    ) -> None:
        partition_text = "" if partition is None else str(partition)
        self._uncommitted[group, partition_text] = UncommittedGroupOffset(
            group=group,
            partition=partition_text,
            reason=reason,
            destination_offset=committed_offset,
            coverage=coverage,
        )

    def skip(
        self,
        group: str,
        reason: str,
        partition: Partition | None = None,
        source: Offset | None = None,
        committed_offset: Offset | None = None,
    ) -> None:
        self.rows.append(to_skip_row(format_group_subject(group, partition), reason, source))
        self._note_uncommitted(group, partition, reason, GroupCoverage.SKIPPED, committed_offset)

    def skip_uncopied(self, group: str, partitions: Collection[Partition]) -> None:
        text = join_limited(sorted({partition.topic for partition in partitions}))
        self.rows.append(to_skip_row(group, f"its offsets of topics that are not copied stay behind: {text}"))
        for partition in partitions:
            self._note_uncommitted(group, partition, UNCOPIED_TOPIC_TEXT, GroupCoverage.SKIPPED)

    def mark_orphaned(
        self,
        orphaned_offsets: Mapping[str, frozenset[Partition]],
        before: Mapping[str, CommittedOffsets],
        source_groups: Collection[str],
        unlisted: Collection[str],
        source: ClusterName,
    ) -> None:
        """Skips what others committed. `unlisted`: these may only lack a coordinator.

        What neither side has is forgotten, unless the group is not listed: it may be hidden.
        """
        for group, partitions in orphaned_offsets.items():
            offsets = before.get(group, _NO_OFFSETS)
            if group in before and group in source_groups:
                self._own_offsets.forget_offsets(group, partitions - offsets.committed.keys() - offsets.unstable)
            for partition in sorted(offsets.committed.keys() & partitions):
                offset = offsets.committed[partition].progress
                if group in unlisted:
                    self.mark_uncommitted(group, partition, format_unlisted(source), None, offset)
                elif offset in self._own_offsets.find_known(group, partition):
                    self.mark_uncommitted(group, partition, _ORPHANED_TEXT, None, offset, GroupCoverage.DELETED)

    def decide_group(
        self,
        name: str,
        destination_group: ConsumerGroup | None,
        committed: Mapping[Partition, CommittedOffset],
        open_partitions: Collection[Partition],
        logs: Mapping[Partition, LogBounds],
        before: CommittedOffsets,
        recreated: Collection[str],
        error: RemoteFault | None,
    ) -> dict[Partition, tuple[Offset, str]]:
        if not committed and not open_partitions:
            self.rows.append(to_skip_row(name, "has committed nothing on mirror topics"))
        elif not self._leave_group(name, destination_group, error):
            for partition in open_partitions:
                self._skip_open_transaction(name, partition, before.committed.get(partition))
            for partition in sorted(committed.keys() & before.unstable):
                self.skip(name, OPEN_TRANSACTION_TEXT, partition, committed[partition].resume_offset)
            decidable = sorted(committed.keys() - before.unstable)
            to_commit = {
                p: self._decide_partition(name, p, committed[p], before.committed.get(p), logs.get(p), recreated)
                for p in decidable
            }
            return {p: (offset, committed[p].metadata) for p, offset in to_commit.items() if offset is not None}
        return {}

    def decide_unread(
        self,
        name: str,
        destination_group: ConsumerGroup | None,
        before: CommittedOffsets,
        error: RemoteFault | None,
        fault: RemoteFault,
    ) -> None:
        """For a group whose offsets the source does not tell: `fault`."""
        if self._leave_group(name, destination_group, error):
            return
        standing = {p: row.progress for p, row in before.committed.items() if p.topic in self._topics}
        unstable = sorted(p for p in before.unstable if p.topic in self._topics)
        for partition, offset in sorted(standing.items()):
            is_own = offset in self._own_offsets.find_known(name, partition)
            standing_text = "the offset of an earlier sync" if is_own else "an offset that no sync has committed"
            self.mark_uncommitted(
                name, partition, f"{_UNREAD_TEXT}, and the destination has {standing_text}: {fault}", None, offset
            )
        for partition in unstable:
            self.skip(name, OPEN_TRANSACTION_TEXT, partition)
        if not standing and not unstable:
            self.mark_uncommitted(name, None, f"{_UNREAD_TEXT}: {fault}")

    def _leave_group(self, name: str, destination_group: ConsumerGroup | None, error: RemoteFault | None) -> bool:
        """Whether the destination forbids commits for the group. `error`: it does not tell the group's offsets."""
        if destination_group and (name in self._share_groups) is not (destination_group.kind == SHARE_KIND):
            self.mark_uncommitted(name, None, f"is a {destination_group.kind} group on the destination")
        elif destination_group is not None and not destination_group.is_idle:
            reason = f"has members on the destination (it is {destination_group.state} there): their progress is theirs"
            self.skip(name, reason)
        elif error is not None:
            self.mark_uncommitted(name, None, str(error))
        else:
            return False
        return True

    def _skip_open_transaction(self, group: str, partition: Partition, before: CommittedOffset | None) -> None:
        reason = "the offset belongs to a transaction that is still open on the source"
        if before is None:
            self.mark_uncommitted(group, partition, reason)
        else:
            self.skip(group, reason, partition, committed_offset=before.offset)

    def _decide_partition(
        self,
        group: str,
        partition: Partition,
        committed: CommittedOffset,
        before: CommittedOffset | None,
        log: LogBounds | None,
        recreated: Collection[str],
    ) -> Offset | None:
        source_offset, destination_offset = committed.resume_offset, before.progress if before else None
        if partition.topic in recreated:
            self.mark_uncommitted(group, partition, RECREATED_TOPIC_TEXT, source_offset, destination_offset)
            return None
        if log is None:
            self.mark_uncommitted(group, partition, UNCOPIED_PARTITION_TEXT, source_offset)
            return None
        known_offsets = self._own_offsets.find_known(group, partition)
        decision = decide_group_offset(
            source=source_offset,
            log=log,
            destination=destination_offset,
            own_commits=known_offsets,
        )
        subject = format_group_subject(group, partition)
        if isinstance(decision, CommitOffset):
            reason = _format_move(decision, source_offset, log)
            self.rows.append(
                to_group_row(subject, SyncAction.COMMIT, source_offset, destination_offset, reason, decision.offset)
            )
            return decision.offset
        if not decision.is_equal:
            self.groups_ahead.add(group)
            self.mark_uncommitted(group, partition, decision.reason, source_offset, destination_offset)
        elif destination_offset is not None and before is not None:
            self._own_offsets.record_offset(group, partition, destination_offset, source_offset)
            lost_metadata = committed.metadata and not before.metadata
            reason = f"without {_METADATA_TEXT}" if lost_metadata else decision.reason
            self.rows.append(
                to_group_row(subject, SyncAction.EQUAL, source_offset, destination_offset, reason, destination_offset)
            )
        return None

    def skip_moved(self, moved: Collection[tuple[str, Partition]]) -> None:
        subjects = {format_group_subject(group, partition) for group, partition in moved}
        reason = "the group goes on while it is looked at, and is followed"
        self.rows = [
            (
                replace(row, action=SyncAction.SKIP, reason=reason)
                if row.subject in subjects and row.action is not SyncAction.EQUAL
                else row
            )
            for row in self.rows
        ]
        for group, partition in moved:
            self._uncommitted.pop((group, str(partition)), None)

    def apply_responses(
        self,
        responses: Mapping[str, Mapping[Partition, str]],
        to_commit: Mapping[str, Mapping[Partition, tuple[Offset, str]]],
    ) -> None:
        code_by_subject = {
            format_group_subject(g, p): (g, p, code) for g, codes in responses.items() for p, code in codes.items()
        }
        for index, row in enumerate(self.rows):
            if row.action is not SyncAction.COMMIT or row.subject not in code_by_subject:
                continue
            group, partition, code = code_by_subject[row.subject]
            if code in COMMITTED_RESULTS:
                self._own_offsets.record_offset(
                    group, partition, to_commit[group][partition][0], Offset(int(row.source))
                )
                metadata_note = f"committed without {_METADATA_TEXT}"
                reason = (
                    row.reason
                    if code != COMMITTED_WITHOUT_METADATA
                    else f"{row.reason}; {metadata_note}"
                    if row.reason
                    else metadata_note
                )
                self.rows[index] = replace(row, done=True, reason=reason)
                continue
            has_joined = code in ACTIVE_GROUP_ERRORS
            reason = (
                f"a member joined on the destination in this moment ({code})" if has_joined else format_refusal(code)
            )
            committed_offset = Offset(int(row.destination)) if row.destination else None
            self.rows[index] = to_group_row(
                row.subject, SyncAction.SKIP, Offset(int(row.source)), committed_offset, reason, committed_offset
            )
            coverage = GroupCoverage.SKIPPED if has_joined else GroupCoverage.REFUSED
            self._note_uncommitted(group, partition, reason, coverage, committed_offset)


_NO_OFFSETS: Final = CommittedOffsets({}, frozenset())
_ORPHANED_TEXT: Final = (
    "the source has no such offset any more (deleted, expired, or hidden from the mirror), and the last one stays on"
    " the destination: delete it there if nobody should start from it"
)
_UNREAD_TEXT: Final = "the group could not be read on the source"
_NO_SHARE_GROUPS_TEXT: Final = (
    "the destination's brokers have no share groups: with Kafka 4.2 or newer this one will be synced"
)
_METADATA_TEXT: Final = "the application's metadata, which is larger than offset.metadata.max.bytes of the destination"


def format_unlisted(cluster: ClusterName) -> str:
    return f"cluster {cluster} does not tell of this group: a partition of {CONSUMER_OFFSETS_TOPIC} there has no leader"


def format_group_subject(group: str, partition: Partition | None) -> str:
    return group if partition is None else f"{group} {partition}"


def _format_move(decision: CommitOffset, source_offset: Offset, log: LogBounds) -> str:
    if decision.offset < source_offset:
        reread_count = source_offset - decision.offset
        limit = (
            f"from {log.commit_end} on the destination has other records than the source"
            if log.commit_end < log.end
            else f"the destination ends at {log.end}"
        )
        return f"{decision.offset}: {limit}; up to {reread_count} offsets would be read again"
    return f"{decision.offset}: the destination begins at {log.start}" if decision.is_clamped else ""


def _list_log_ranges(
    destination: ClusterClient, partitions: Collection[Partition], agreed_ends: Mapping[Partition, Offset]
) -> dict[Partition, LogBounds]:
    topics = destination.metadata({partition.topic for partition in partitions}).topics
    present = [p for p in partitions if p.topic in topics and p.index in topics[p.topic].partitions]
    starts, ends = list_offset_points(destination, present, [OffsetPoint.START, OffsetPoint.LOG_END]).values()
    return {p: LogBounds(starts[p], ends[p], agreed_ends.get(p)) for p in present}


def to_group_row(
    subject: str,
    action: SyncAction,
    source: Offset | None = None,
    destination: Offset | None = None,
    reason: str = "",
    committed_offset: Offset | None = None,
) -> DriftRow:
    return DriftRow(
        part=SyncCategory.GROUPS,
        subject=subject,
        source="" if source is None else str(source),
        destination="" if destination is None else str(destination),
        action=action,
        reason=reason,
        offset=UNSET if committed_offset is None else committed_offset,
    )


def to_skip_row(subject: str, reason: str, source: Offset | None = None) -> DriftRow:
    return to_group_row(subject, SyncAction.SKIP, source, reason=reason)

"""Which offset of a consumer group to commit, and what became of every partition in scope.

Rules, the weightiest first:
1. Always inside the destination's log. A group may read again, never skip.
2. A group with members on the destination is not touched.
3. The commit follows the source's in both directions: a group that was reset there must not skip that work after a
   failover.
4. Progress made on the destination is never undone. A mirror knows its own commits (`model.sync_state.OwnGroupOffsets`)
   whatever their leader epoch: librdkafka, kafkajs and administrators send none. Any other offset ahead of the source's
   stays, and people are told. Once the source reaches it, it counts as the mirror's own. On a reverse mirror, so does
   everything committed before the failover.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from mirror_core.decide.clock_skew import compute_age_s
from mirror_core.decide.filters import build_group_filter
from mirror_core.decide.mirror_snapshot import DestinationSnapshot, MirrorSnapshot, SourceSnapshot, UnseenCluster
from mirror_core.model.forecast import UncountedReread
from mirror_core.model.mirror import GroupSyncTime, Mirror, has_listed_all
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import GroupCoverage, OwnGroupOffsets, UncommittedGroupOffset, UnsyncedGroups


@dataclass(frozen=True, slots=True)
class CommitOffset:
    offset: Offset
    is_clamped: bool


@dataclass(frozen=True, slots=True)
class KeepOffset:
    """`is_equal`: the destination has this offset already."""

    reason: str
    is_equal: bool = False


@dataclass(frozen=True, slots=True)
class LogBounds:
    """[start, end) of the log on the destination."""

    start: Offset
    end: Offset
    agreed_end: Offset | None = None
    """From here on the source has other records at the same offsets. None: not known of any."""

    @property
    def commit_end(self) -> Offset:
        """The mirror commits nothing beyond it. Others on the destination may: up to `end`."""
        return self.end if self.agreed_end is None else min(self.end, self.agreed_end)


def clamp_offset(offset: Offset, log: LogBounds) -> Offset:
    return max(log.start, min(offset, log.commit_end))


def decide_group_offset(
    *, source: Offset, log: LogBounds, destination: Offset | None, own_commits: Collection[Offset] = ()
) -> CommitOffset | KeepOffset:
    """For one partition of a group without members on the destination.

    `source`, `destination`: committed offsets (next to read); `own_commits`: what the mirror committed there last.
    """
    offset = clamp_offset(source, log)
    if destination == offset:
        return KeepOffset("", is_equal=True)
    if destination is not None and destination not in own_commits and offset < destination <= log.end:
        clamped_text = f" of {offset}" if offset < source else ""
        return KeepOffset(
            f"somebody on the destination has committed {destination}, which is ahead{clamped_text}; to follow the "
            "source, delete the group's offset there"
        )
    return CommitOffset(offset, is_clamped=offset != source)


RESET_POLICY_TEXT: Final = "where auto.offset.reset says"
"""With `latest`, the default, a group without an offset skips what is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoverageRow:
    group: str
    partition: str
    """Empty: the whole group."""
    coverage: GroupCoverage
    offset: int | None
    """On the destination, next to be read. None: not known, or none."""
    clamped_by: int = 0
    """The source's offset minus ours. Positive: to be read again; negative: the destination's log begins later."""
    reason: str = ""
    age_s: float | None
    """Synced and clamped: since the last look at the group. Others: since it is so. None: not known."""


def list_group_coverage(
    mirror: Mirror,
    partitions: Collection[Partition],
    own_offsets: Iterable[OwnGroupOffsets],
    groups_left: UnsyncedGroups | None,
    last_sync: GroupSyncTime | None,
    now_ms: int,
) -> list[GroupCoverageRow]:
    """By what is recorded: the same without the source."""
    wanted, synced_s = build_group_filter(mirror), compute_age_s(now_ms, last_sync.synced_ms) if last_sync else None
    uncommitted = [u for u in groups_left.uncommitted if u.group in wanted] if groups_left else []
    uncommitted_subjects = {(u.group, u.partition) for u in uncommitted}
    rows = [
        GroupCoverageRow(
            group=u.group,
            partition=u.partition,
            coverage=u.coverage,
            offset=u.destination_offset,
            reason=u.reason,
            age_s=None if u.since_ms is None else compute_age_s(now_ms, u.since_ms),
        )
        for u in uncommitted
    ]
    share_groups = frozenset(groups_left.share_groups) if groups_left else frozenset()
    share_synced_s = find_share_sync_age_s(mirror, groups_left, now_ms)
    for record in own_offsets:
        if record.group not in wanted or (record.group, "") in uncommitted_subjects:
            continue
        clamped_from = record.clamped_from.to_mapping()
        rows += [
            _to_committed_row(
                record.group,
                partition,
                offset,
                clamped_from.get(partition, offset),
                share_synced_s if record.group in share_groups else synced_s,
            )
            for partition, offset in record.offsets.to_mapping().items()
            if partition in partitions and (record.group, str(partition)) not in uncommitted_subjects
        ]
    return sorted(rows, key=lambda row: (row.group, row.partition))


def _to_committed_row(
    group: str, partition: Partition, offset: Offset, source: Offset, synced_s: float | None
) -> GroupCoverageRow:
    return GroupCoverageRow(
        group=group,
        partition=str(partition),
        coverage=GroupCoverage.SYNCED if offset == source else GroupCoverage.CLAMPED,
        offset=offset,
        clamped_by=source - offset,
        age_s=synced_s,
    )


def find_share_sync_age_s(mirror: Mirror, groups_left: UnsyncedGroups | None, now_ms: int) -> float | None:
    """Only syncs read share groups. None: not known, or there are no share groups."""
    if (
        groups_left is None
        or groups_left.share_groups_synced_ms is None
        or not has_listed_share_groups(mirror, groups_left)
    ):
        return None
    return compute_age_s(now_ms, groups_left.share_groups_synced_ms)


def has_listed_share_groups(mirror: Mirror, groups_left: UnsyncedGroups) -> bool:
    return has_listed_all(mirror.group_filters, groups_left.share_groups_listed_by)


def list_uncommitted(snapshot: MirrorSnapshot) -> list[UncommittedGroupOffset]:
    """Includes offsets that the destination has lost; without those that it has by now."""
    destination = snapshot.destination
    committed = destination.committed if isinstance(destination, DestinationSnapshot) else {}
    committed_partitions = {group: {str(partition) for partition in offsets} for group, offsets in committed.items()}
    uncommitted = [
        item
        for item in (snapshot.groups_left.uncommitted if snapshot.groups_left else ())
        if not item.has_reset_start
        or not item.partition  # offsets there may be older ones, or of a group of another type
        or item.partition not in committed_partitions.get(item.group, ())
    ]
    if not isinstance(destination, DestinationSnapshot) or not cannot_sync_again(snapshot):
        return uncommitted
    if destination.groups_unknown or destination.groups_unread or destination.groups_partly_listed:
        return uncommitted
    topics = {partition.topic for partition in snapshot.statuses}
    lost = list_lost_offsets(snapshot.mirror, topics, snapshot.own_group_offsets, committed)
    return [*uncommitted, *_exclude_known(lost, uncommitted)]


def list_active_groups(snapshot: MirrorSnapshot) -> tuple[str, ...]:
    """Groups of this mirror with members on the destination: no sync commits offsets for them."""
    destination, source, groups_left = snapshot.destination, snapshot.source, snapshot.groups_left
    if not isinstance(destination, DestinationSnapshot):
        return ()
    known_groups = {*destination.committed, *(record.group for record in snapshot.own_group_offsets)}
    known_groups |= {item.group for item in groups_left.uncommitted} if groups_left else set()
    known_groups |= source.committed.keys() if isinstance(source, SourceSnapshot) else set()
    return tuple(group for group in destination.active_groups if group in known_groups)


def find_uncounted_groups(snapshot: MirrorSnapshot) -> dict[str, UncountedReread]:
    """Groups that would not begin where a sync has put them."""
    is_synced_again = not cannot_sync_again(snapshot)
    uncommitted = {
        item.group: UncountedReread.UNCOMMITTED
        for item in list_uncommitted(snapshot)
        if item.has_reset_start or (is_synced_again and item.coverage is GroupCoverage.REFUSED)
    }
    return {**uncommitted, **dict.fromkeys(list_active_groups(snapshot), UncountedReread.ACTIVE)}


def cannot_sync_again(snapshot: MirrorSnapshot) -> bool:
    return isinstance(snapshot.source, UnseenCluster) or snapshot.mode is RunMode.UNPLANNED


def list_lost_offsets(
    mirror: Mirror,
    topics: Collection[str],
    own_offsets: Iterable[OwnGroupOffsets],
    committed: Mapping[str, Collection[Partition]],
) -> list[UncommittedGroupOffset]:
    """Offsets that the mirror committed and the destination lost: deleted, or expired. `committed`: what it has, by
    group.
    """
    wanted = build_group_filter(mirror)
    return [
        UncommittedGroupOffset(group=record.group, partition=str(partition), reason=f"{_LOST_TEXT} {offset}")
        for record in own_offsets
        if record.group in wanted
        for partition, offset in record.offsets.to_mapping().items()
        if partition.topic in topics and partition not in committed.get(record.group, ())
    ]


_LOST_TEXT: Final = "the destination has lost the offset, by deletion or offsets.retention.minutes; it was"


def _exclude_known(
    lost: Iterable[UncommittedGroupOffset], uncommitted: Iterable[UncommittedGroupOffset]
) -> list[UncommittedGroupOffset]:
    subjects = {(item.group, item.partition) for item in uncommitted}
    return [item for item in lost if not {(item.group, item.partition), (item.group, "")} & subjects]


def count_coverage(snapshot: MirrorSnapshot) -> dict[str, Counter[GroupCoverage]]:
    """Partitions by group; a row of a whole group counts as one."""
    counts: dict[str, Counter[GroupCoverage]] = {}
    recorded = snapshot.groups_left or UnsyncedGroups(mirror=snapshot.mirror.name)
    groups_left = replace(recorded, uncommitted=tuple(list_uncommitted(snapshot)))
    for row in list_group_coverage(
        snapshot.mirror,
        snapshot.statuses,
        snapshot.own_group_offsets,
        groups_left,
        snapshot.groups,
        snapshot.now_ms,
    ):
        counts.setdefault(row.group, Counter())[row.coverage] += 1
    return counts


def date_uncommitted(
    uncommitted: Iterable[UncommittedGroupOffset], before: Iterable[UncommittedGroupOffset], now_ms: int
) -> tuple[UncommittedGroupOffset, ...]:
    since = {(u.group, u.partition, u.coverage): u.since_ms for u in before}
    return tuple(replace(u, since_ms=since.get((u.group, u.partition, u.coverage)) or now_ms) for u in uncommitted)


def find_not_brought_over(uncommitted: Iterable[UncommittedGroupOffset], topics: Collection[str]) -> dict[str, str]:
    """By group, the first reason why the destination lacks some of its offsets of `topics`."""
    reasons = dict[str, str]()
    for item in uncommitted:
        is_in_scope = not item.partition or item.partition.rpartition("-")[0] in topics
        if item.coverage in (GroupCoverage.REFUSED, GroupCoverage.SKIPPED) and is_in_scope:
            reasons.setdefault(item.group, item.reason)
    return reasons


def format_uncommitted(uncommitted: UncommittedGroupOffset) -> str:
    subject = f"{uncommitted.group} {uncommitted.partition}" if uncommitted.partition else uncommitted.group
    standing_text = "" if uncommitted.destination_offset is None else f" (stays at {uncommitted.destination_offset})"
    return f"{subject}{standing_text}: {uncommitted.reason}"


def format_all_refused(uncommitted: Iterable[UncommittedGroupOffset], limit: int = 10) -> str:
    refused = [item for item in uncommitted if item.coverage is GroupCoverage.REFUSED]
    without_offset = [format_uncommitted(item) for item in refused if item.has_reset_start]
    with_other_offset = [format_uncommitted(item) for item in refused if not item.has_reset_start]
    parts = [
        (
            f"{len(without_offset)} without an offset on the destination, so that the group starts {RESET_POLICY_TEXT}",
            without_offset,
        ),
        (f"{len(with_other_offset)} that another offset stays in place of", with_other_offset),
    ]
    return "; ".join(f"{label}: {_join_first(lines, limit)}" for label, lines in parts if lines)


def format_waiting_offsets(uncommitted: Iterable[UncommittedGroupOffset], limit: int = 10) -> str:
    waiting = [item for item in uncommitted if item.coverage is GroupCoverage.WAITING]
    return _join_first([format_uncommitted(item) for item in waiting], limit)


def format_all_deleted(uncommitted: Iterable[UncommittedGroupOffset], limit: int = 10) -> str:
    deleted = [item for item in uncommitted if item.coverage is GroupCoverage.DELETED]
    return _join_first([f"{item.group} {item.partition} at {item.destination_offset}" for item in deleted], limit)


def _join_first(lines: list[str], limit: int) -> str:
    more_text = f" and {len(lines) - limit} more" if len(lines) > limit else ""
    return ", ".join(lines[:limit]) + more_text


def list_groups_by_coverage(groups_left: UnsyncedGroups | None, coverage: GroupCoverage) -> tuple[str, ...] | None:
    if groups_left is None:
        return None
    return tuple(sorted({item.group for item in groups_left.uncommitted if item.coverage is coverage}))

"""Group offsets at a failover without the source, and on a former primary before a failback."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from mirror_core.decide.filters import build_group_filter
from mirror_core.decide.group_coverage import RESET_POLICY_TEXT, LogBounds, clamp_offset, list_lost_offsets
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import (
    ACTIVE_GROUP_ERRORS,
    COMMITTED_RESULTS,
    DENIED_GROUP_ERRORS,
    CommittedOffset,
    fetch_group_offsets,
    has_offline_coordinators,
    list_groups,
    list_share_groups,
)
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import DriftRow, OwnGroupOffsets, SyncAction, SyncCategory
from mirror_core.state.journal import JournalLog
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync.offset_commits import OffsetCommitter, OwnCommittedOffsets, commit_until_answered, format_refusal
from mirror_core.sync.offset_sync import format_group_subject, format_unlisted, to_group_row, to_skip_row


def clamp_groups(
    link: MirrorLink,
    topics: Collection[str],
    safe_ends: Mapping[Partition, Offset | None] = MappingProxyType({}),
    own_offsets: Collection[OwnGroupOffsets] = (),
    agreed_ends: Mapping[Partition, Offset] = MappingProxyType({}),
    doubtful_from: Mapping[Partition, Offset] = MappingProxyType({}),
) -> list[DriftRow]:
    """Moves offsets into the destination's logs, which may have lost ends with a broker, in an unplanned failover.

    `safe_ends`: what lies beyond may still be lost; None where unknown. `own_offsets`: the destination may have lost
    some, which have a row each. `agreed_ends`: what lies beyond is not the source's; of the offsets there only the
    mirror's own are moved. `doubtful_from`: what lies beyond may be anybody's; its own there are named.
    """
    with ClusterClient(link.destination) as destination:
        chosen = build_group_filter(link.mirror)
        groups = {n: g for n, g in list_groups(destination).items() if n in chosen}
        is_partly_listed = has_offline_coordinators(destination)
        fetched = fetch_group_offsets(destination, groups.values())
        rows = [to_skip_row(name, str(error)) for name, error in sorted(fetched.faults.items())]
        committed = {
            name: {p: c for p, c in offsets.committed.items() if p.topic in topics}
            for name, offsets in sorted(fetched.offsets.items())
        }
        partitions = {p for group_offsets in committed.values() for p in group_offsets}
        starts = list_known_offsets(destination, partitions, OffsetPoint.START)
        ends = list_known_offsets(destination, partitions, OffsetPoint.LOG_END)
        ends |= {p: min(ends[p], end) for p, end in safe_ends.items() if end is not None and p in ends}
        logs = {p: LogBounds(starts[p], ends[p], agreed_ends.get(p)) for p in starts.keys() & ends.keys()}
        own_by_group = {record.group: record.offsets.to_mapping() for record in own_offsets}
        outside_offsets = {
            name: _list_outside(group_offsets, logs, own_by_group.get(name, {}))
            for name, group_offsets in committed.items()
        }
        to_commit = {
            name: group_offsets
            for name, group_offsets in outside_offsets.items()
            if group_offsets and groups[name].is_idle
        }
        with OffsetCommitter(destination, check_ownership=None) as commits:
            share_groups = list_share_groups(groups.values())
            responses = commit_until_answered(commits, to_commit, destination, share_groups)
    for name, group_offsets in committed.items():
        if groups[name].is_idle:
            doubtful = _list_doubtful(group_offsets, doubtful_from, own_by_group.get(name, {}))
            rows += _to_clamped_rows(name, group_offsets, logs, responses.get(name, {}), doubtful)
        elif outside_offsets[name]:
            rows.append(to_skip_row(name, f"has members on the destination (it is {groups[name].state} there)"))
    own = [record for record in own_offsets if record.group in chosen and record.group not in fetched.faults]
    unlisted = {record.group for record in own if is_partly_listed and record.group not in groups}
    rows += [to_skip_row(name, format_unlisted(link.destination.name)) for name in sorted(unlisted)]
    known = [record for record in own if record.group not in unlisted]
    rows += [
        to_skip_row(f"{item.group} {item.partition}", item.reason)
        for item in list_lost_offsets(link.mirror, topics, known, committed)
    ]
    return rows


def _list_outside(
    committed: Mapping[Partition, CommittedOffset],
    logs: Mapping[Partition, LogBounds],
    own_offsets: Mapping[Partition, Offset],
) -> dict[Partition, tuple[Offset, str]]:
    ends = {
        p: logs[p].commit_end if own_offsets.get(p) == c.progress else logs[p].end
        for p, c in committed.items()
        if p in logs
    }
    return {
        p: (clamp_offset(committed[p].offset, logs[p]), committed[p].metadata)
        for p, end in ends.items()
        if not logs[p].start <= committed[p].offset <= committed[p].progress <= end
    }


def _list_doubtful(
    committed: Mapping[Partition, CommittedOffset],
    doubtful_from: Mapping[Partition, Offset],
    own_offsets: Mapping[Partition, Offset],
) -> frozenset[Partition]:
    return frozenset(
        p for p, c in committed.items() if own_offsets.get(p) == c.progress > doubtful_from.get(p, c.progress)
    )


def _to_clamped_rows(
    name: str,
    committed: Mapping[Partition, CommittedOffset],
    logs: Mapping[Partition, LogBounds],
    codes: Mapping[Partition, str],
    doubtful: Collection[Partition],
) -> list[DriftRow]:
    rows = list[DriftRow]()
    for partition in sorted(committed):
        subject, offset, code = format_group_subject(name, partition), committed[partition].offset, codes.get(partition)
        if code is None and partition in doubtful:
            rows.append(to_skip_row(subject, f"{offset} may skip records: who wrote the end of this log is unknown"))
            continue
        if code is None:
            rows.append(to_group_row(subject, SyncAction.EQUAL, None, offset, committed_offset=offset))
            continue
        log = logs[partition]
        where = f"the log is [{log.start}, {log.commit_end}]"
        if code in COMMITTED_RESULTS:
            moved = clamp_offset(offset, log)
            rows.append(replace(to_group_row(subject, SyncAction.COMMIT, None, offset, where, moved), done=True))
        else:  # outside its log: counts as none
            rows.append(
                to_group_row(
                    subject,
                    SyncAction.SKIP,
                    None,
                    offset,
                    f"{where}; starts {RESET_POLICY_TEXT}: {format_refusal(code)}",
                )
            )
    return rows


def to_resume_offsets(rows: Iterable[DriftRow]) -> dict[str, dict[Partition, Offset]]:
    resume_offsets = dict[str, dict[Partition, Offset]]()
    for row in rows:
        if (
            row.part is SyncCategory.GROUPS
            and isinstance(row.offset, int)
            and (row.done or row.action is SyncAction.EQUAL)
        ):
            group, _, partition = row.subject.rpartition(" ")
            topic, _, index = partition.rpartition("-")
            resume_offsets.setdefault(group, {})[Partition(topic, int(index))] = Offset(row.offset)
    return resume_offsets


def reset_group_offsets(mirror: Mirror, client: ClusterClient, topics: Collection[str], log: JournalLog) -> int:
    """Records offsets on a former primary as the mirror's own; returns the number of groups. May be repeated.

    They are from before the failover. A sync would protect them as progress, and a group set back on the new primary
    would skip records. Those in the divergent tail move to the log end. Share groups forget what was acknowledged
    behind their start offset, where other records will be. Groups with members are left alone.
    """
    wanted = build_group_filter(mirror)
    groups = [g for n, g in list_groups(client).items() if n in wanted and g.is_idle]
    fetched = fetch_group_offsets(client, groups)
    for error in fetched.faults.values():
        raise error
    committed_by_group = {
        name: {p: committed for p, committed in offsets.committed.items() if p.topic in topics}
        for name, offsets in fetched.offsets.items()
    }
    ends = list_known_offsets(
        client, {p for group_offsets in committed_by_group.values() for p in group_offsets}, OffsetPoint.LOG_END
    )
    share_groups = list_share_groups(groups)
    to_replace = {
        name: {
            p: (min(c.offset, ends[p]), c.metadata)
            for p, c in group_offsets.items()
            if p in ends and (c.offset > ends[p] or name in share_groups)
        }
        for name, group_offsets in committed_by_group.items()
    }
    if to_commit := {name: group_offsets for name, group_offsets in to_replace.items() if group_offsets}:
        with OffsetCommitter(client, check_ownership=None) as commits:
            responses = commit_until_answered(commits, to_commit, client, share_groups)
        refusals = {
            f"group {g}, {p}: {code}": code
            for g, codes in responses.items()
            for p, code in codes.items()
            if code not in COMMITTED_RESULTS
        }
        # Groups with members by now own their offsets. Any other offset left as it is would skip records silently.
        if unreplaced := [text for text, code in refusals.items() if code not in ACTIVE_GROUP_ERRORS]:
            error_class = MissingPermission if DENIED_GROUP_ERRORS & set(refusals.values()) else RemoteFault
            raise error_class(
                f"cluster {client.name}: offsets of groups from before the failover could not be replaced: what lies"
                f" before them would be skipped: {join_limited(unreplaced)}. Needs READ on these groups and topics;"
                " then resume"
            )
    own_offsets = OwnCommittedOffsets(mirror.name, log.state)
    for name, group_offsets in committed_by_group.items():
        for partition, committed in group_offsets.items():
            if partition in ends:
                own_offsets.record_offset(name, partition, min(committed.offset, ends[partition]))
    if new_records := own_offsets.pop_unwritten():
        log.put(*new_records)
    return sum(bool(group_offsets) for group_offsets in committed_by_group.values())

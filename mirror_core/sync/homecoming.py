from __future__ import annotations

from collections.abc import Collection

from mirror_core.decide.filters import build_group_filter
from mirror_core.decide.view import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import (
    ACTIVE_GROUP_ERRORS,
    COMMITTED_RESULTS,
    DENIED_GROUP_ERRORS,
    fetch_group_offsets,
)
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.kafka.offsets import OffsetPoint, list_known_offsets
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.mirror import Mirror
from mirror_core.state.journal import JournalLog
from mirror_core.sync.group_commits import OffsetCommitter, OwnCommittedOffsets, commit_until_answered


def reset_group_offsets(mirror: Mirror, client: ClusterClient, topics: Collection[str], log: JournalLog) -> int:
    """Record offsets on a former primary as the mirror's own; returns the number of groups.

    They are from before the failover. A sync would protect them as progress, and a group set back on the new primary
    would skip records. Those in the divergent tail move to the log end. Groups with members are left alone. May be
    repeated.
    """
    wanted = build_group_filter(mirror)
    groups = [g for n, g in list_groups(client).items() if n in wanted and g.kind in OFFSET_KINDS and g.is_idle]
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
    beyond_end = {
        name: {p: (ends[p], c.metadata) for p, c in group_offsets.items() if p in ends and c.offset > ends[p]}
        for name, group_offsets in committed_by_group.items()
    }
    if to_commit := {name: group_offsets for name, group_offsets in beyond_end.items() if group_offsets}:
        with OffsetCommitter(client, check_ownership=None) as commits:
            responses = commit_until_answered(commits, to_commit, client)
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
                f"cluster {client.name}: offsets of groups from before the failover could not be replaced: what lies "
                f"before them would be skipped: {join_limited(unreplaced)}. Needs READ on these groups and topics; then resume"
            )
    own_offsets = OwnCommittedOffsets(mirror.name, log.state)
    for name, group_offsets in committed_by_group.items():
        for partition, committed in group_offsets.items():
            if partition in ends:
                own_offsets.record_offset(name, partition, min(committed.offset, ends[partition]))
    if new_records := own_offsets.pop_unwritten():
        log.put(*new_records)
    return sum(bool(group_offsets) for group_offsets in committed_by_group.values())

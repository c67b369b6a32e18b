"""Groups' offsets on a cluster that turns from a primary into a destination again.

What a group committed there, it committed in another life: by consumers that read before the failover. It looks like
the progress of a consumer that reads the mirror topics now, which a sync protects, and is none: left as it is, a group
that was set back on the new primary would skip on the way home. And a commit in the tail that was cut off would skip
what is copied in its place. So before the first sync each such commit is made one of ours: the same offset, at most the
log's end of this moment, without a leader epoch. From then on a leader epoch means a consumer that has read since.
"""

from __future__ import annotations

from collections.abc import Collection

from mirror_core.decide.filters import group_filter
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import DONE, JOINED, NOT_ALLOWED, fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.mirror import Mirror
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.group_commits import GroupCommits, commit_all


def bring_home(mirror: Mirror, client: ClusterClient, topics: Collection[str]) -> int:
    """Make what groups in the mirror's scope committed on its destination, behind `client`, ours; how many groups.

    Groups with members there are left alone: their consumers read the mirror topics now. Safe to repeat.
    """
    chosen = group_filter(mirror)
    groups = [g for n, g in list_groups(client).items() if n in chosen and g.kind in OFFSET_KINDS and g.idle]
    fetched = fetch_all(client, groups)
    for error in fetched.faults.values():
        raise error
    found = {name: offsets.committed for name, offsets in fetched.offsets.items()}
    ends = known_offsets(client, {p for mine in found.values() for p in mine if p.topic in topics}, Point.LOG_END)
    todo = dict[str, dict[Partition, tuple[Offset, str]]]()
    for name, mine in found.items():
        for partition, committed in mine.items():
            if partition in ends and (committed.leader_epoch >= 0 or committed.offset > ends[partition]):
                offset = min(committed.offset, ends[partition])
                todo.setdefault(name, {})[partition] = (offset, committed.metadata)
    if todo:
        with GroupCommits(client, still_ours=None) as commits:
            said = commit_all(commits, todo, client)
        refused = {
            f"group {g}, {p}: {word}": word for g, row in said.items() for p, word in row.items() if word != DONE
        }
        # One with members by now is theirs. What stays as it was for another reason would be skipped, silently.
        if left := [words for words, word in refused.items() if word not in JOINED]:
            kind = MissingPermission if NOT_ALLOWED & set(refused.values()) else RemoteFault
            raise kind(
                f"cluster {client.name}: offsets of groups from before the failover could not be replaced: what lies "
                f"before them would be skipped: {some(left)}. Needs READ on these groups and topics; then resume"
            )
    return len(todo)

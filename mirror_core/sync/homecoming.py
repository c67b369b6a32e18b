"""Groups' offsets on a cluster that turns from a primary into a destination again.

What a group committed there, it committed in another life: by consumers that read before the failover. It looks like
the progress of a consumer that reads the mirror topics now, which a sync protects, and is none: left as it is, a group
that was set back on the new primary would skip on the way home. So before the first sync the mirror remembers all of it
as committed by itself. And a commit in the tail that was cut off would skip what is copied in its place: it is moved to
the log's end of this moment.
"""

from __future__ import annotations

from collections.abc import Collection

from mirror_core.decide.filters import group_filter
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import JOINED, NOT_ALLOWED, TAKEN, fetch_all
from mirror_core.kafka.groups import OFFSET_KINDS, list_groups
from mirror_core.kafka.offsets import Point, known_offsets
from mirror_core.model.errors import MissingPermission, RemoteFault
from mirror_core.model.mirror import Mirror
from mirror_core.state.journal import Log
from mirror_core.sync.group_commits import GroupCommits, OwnOffsets, commit_all


def bring_home(mirror: Mirror, client: ClusterClient, topics: Collection[str], log: Log) -> int:
    """Make what groups in the mirror's scope committed on its destination, behind `client`, ours; how many groups.

    Groups with members there are left alone: their consumers read the mirror topics now. Safe to repeat.
    """
    chosen = group_filter(mirror)
    groups = [g for n, g in list_groups(client).items() if n in chosen and g.kind in OFFSET_KINDS and g.idle]
    fetched = fetch_all(client, groups)
    for error in fetched.faults.values():
        raise error
    found = {
        name: {p: committed for p, committed in offsets.committed.items() if p.topic in topics}
        for name, offsets in fetched.offsets.items()
    }
    ends = known_offsets(client, {p for mine in found.values() for p in mine}, Point.LOG_END)
    beyond = {
        name: {p: (ends[p], c.metadata) for p, c in mine.items() if p in ends and c.offset > ends[p]}
        for name, mine in found.items()
    }
    if todo := {name: mine for name, mine in beyond.items() if mine}:
        with GroupCommits(client, still_ours=None) as commits:
            said = commit_all(commits, todo, client)
        refused = {
            f"group {g}, {p}: {word}": word for g, row in said.items() for p, word in row.items() if word not in TAKEN
        }
        # One with members by now is theirs. What stays as it was for another reason would be skipped, silently.
        if left := [words for words, word in refused.items() if word not in JOINED]:
            kind = MissingPermission if NOT_ALLOWED & set(refused.values()) else RemoteFault
            raise kind(
                f"cluster {client.name}: offsets of groups from before the failover could not be replaced: what lies "
                f"before them would be skipped: {some(left)}. Needs READ on these groups and topics; then resume"
            )
    own = OwnOffsets(mirror.name, log.state)
    for name, mine in found.items():
        for partition, committed in mine.items():
            if partition in ends:
                own.note(name, partition, min(committed.offset, ends[partition]))
    if news := own.news():
        log.put(*news)
    return sum(bool(mine) for mine in found.values())

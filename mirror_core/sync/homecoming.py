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
    """Record offsets on a former primary as the mirror's own; returns the number of groups.

    They are from before the failover. A sync would protect them as progress, and a group set back on the new primary
    would skip records. Those in the divergent tail move to the log end. Groups with members are left alone. May be
    repeated.
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
        # Groups with members by now own their offsets. Any other offset left as it is would skip records silently.
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

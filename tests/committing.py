"""What one group committed, and committing for it as an administrator does."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.group_batches import DONE, GroupBatches
from mirror_core.kafka.groups import Offsets
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.group_commits import GroupCommits, commit_all


def fetch_offsets(client: ClusterClient, group: str) -> Offsets:
    """All that the group committed."""
    fetched = GroupBatches(client).fetch_known({group: None})
    for error in fetched.faults.values():
        raise error
    return fetched.offsets[group]


def commit_offsets(
    client: ClusterClient, group: str, offsets: Mapping[Partition, tuple[Offset, str]]
) -> dict[Partition, str]:
    """Commit offsets (next to be read); the partitions that were refused, with the broker's word for it."""
    with GroupCommits(client, still_ours=None) as commits:
        said = commit_all(commits, {group: offsets}, client)
    return {partition: word for partition, word in said[group].items() if word != DONE}

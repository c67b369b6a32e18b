"""Groups' offsets from before a failover, on the cluster that becomes a destination again."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Operation, Resource
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import Offset, Partition
from mirror_core.rights.acl_rules import build_denial
from mirror_core.sync.failover_offsets import reset_group_offsets
from mirror_core.sync.offset_commits import OwnCommittedOffsets
from tests.support.group_commits import commit_offsets, fetch_offsets
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.memory_state import MemoryLog
from tests.support.mirrored_topics import new_mirror

pytestmark = pytest.mark.cluster


def test_an_offset_of_another_life_is_ours_and_one_that_cannot_be_replaced_is_named(pair: Pair, tmp_path: Path) -> None:
    """One beyond the log's end would let the group skip; any other would be taken for somebody's own progress."""
    group, topic = "g-" + secrets.token_hex(4), new_topic(pair.east, 2)
    for partition in (0, 1):
        produce(pair.east, topic, 10, partition=partition)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    link, log = mirrored.link, MemoryLog()
    late = {build_denial(group, "User:mirror-control", resource=Resource.GROUP, operation=Operation.READ)}
    with ClusterClient(link.destination) as west:
        there = {Partition(topic, 0): (Offset(15), ""), Partition(topic, 1): (Offset(8), "note")}
        assert commit_offsets(west, group, there) == {}
        create_acls(west, late)
        try:
            wait_until_acls_present(west, late)
            with pytest.raises(MissingPermission, match=f"group {group}, {topic}-0: group_authorization_failed"):
                reset_group_offsets(link.mirror, west, [topic], log)
        finally:
            delete_acls(west, late)
            wait_until_acls_absent(west, late)
        assert reset_group_offsets(link.mirror, west, [topic], log) == 1
        found = fetch_offsets(west, group).committed
        assert {p.index: (c.offset, c.metadata) for p, c in found.items()} == {0: (10, ""), 1: (8, "note")}
        own = OwnCommittedOffsets(mirrored.name, log.state)
        assert [list(own.find_known(group, Partition(topic, index))) for index in (0, 1)] == [[10], [8]]

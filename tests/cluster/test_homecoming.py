"""Groups' offsets from before a failover, on the cluster that becomes a destination again."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from mirror_core.kafka.acls import absent_on_every_broker, create_acls, delete_acls, present_on_every_broker
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Operation, Resource
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import Partition
from mirror_core.rights.acls import denial
from mirror_core.sync.homecoming import bring_home
from tests.brokers import Pair, new_topic, produce
from tests.cluster.test_sync_groups import consumer
from tests.committing import fetch_offsets
from tests.mirroring import new_mirror

pytestmark = pytest.mark.cluster


def test_an_offset_of_another_life_that_cannot_be_replaced_is_named(pair: Pair, tmp_path: Path) -> None:
    """Taken for the progress of a consumer that reads there now, it would let the group skip."""
    group, topic = "g-" + secrets.token_hex(4), new_topic(pair.east)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    with consumer(pair.west, group, topic) as member:
        member.commit(asynchronous=False)
    link = mirrored.link
    late = {denial(group, "User:mirror-control", resource=Resource.GROUP, operation=Operation.READ)}
    with ClusterClient(link.destination) as west:
        create_acls(west, late)
        try:
            present_on_every_broker(west, late)
            with pytest.raises(MissingPermission, match=f"group {group}, {topic}-0: group_authorization_failed"):
                bring_home(link.mirror, west, [topic])
        finally:
            delete_acls(west, late)
            absent_on_every_broker(west, late)
        assert fetch_offsets(west, group).committed[Partition(topic, 0)].leader_epoch >= 0
        assert bring_home(link.mirror, west, [topic]) == 1
        assert fetch_offsets(west, group).committed[Partition(topic, 0)].leader_epoch == -1

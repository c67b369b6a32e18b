"""A topic that the control principal may not DESCRIBE for a while is denied, with the missing grant, never gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.errors import MissingPermission, Refused
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import ClusterName, Partition
from mirror_core.model.run import RunMode
from mirror_core.model.sync_state import SyncAction
from mirror_core.model.timing import now_ms
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.data_plane_thread import driving
from tests.support.failback_runs import failback_of, failed_over
from tests.support.failover_runs import app_topic
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.mirrored_topics import new_mirror
from tests.support.topic_equality import assert_parity
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@contextmanager
def hidden(cluster: SandboxCluster, topic: str) -> Iterator[None]:
    """From the control principal there, until left."""
    denial = Acl(
        resource=Resource.TOPIC,
        name=topic,
        principal="User:mirror-control",
        operation=Operation.DESCRIBE,
        permission=Permission.DENY,
    )
    with as_admin(cluster) as client:
        create_acls(client, [denial])
        wait_until_acls_present(client, [denial])
        try:
            yield
        finally:
            delete_acls(client, [denial])
            wait_until_acls_absent(client, [denial])


def test_brokers_say_of_a_hidden_topic_by_its_name_that_it_is_denied_and_leave_it_out_of_listings(pair: Pair) -> None:
    topic, never = new_topic(pair.east), "never-there"
    config = load_config(pair.config_path).cluster(ClusterName("east"))
    with hidden(pair.east, topic), ClusterClient(config) as client:
        assert topic not in client.metadata().topics
        assert find_existing_topics(client, [never]) == {}
        with pytest.raises(MissingPermission, match=f"mirror-control may not DESCRIBE {topic}"):
            find_existing_topics(client, [topic, never])


def test_a_failback_is_not_planned_over_a_topic_that_may_not_be_seen(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = failed_over(pair, tmp_path, topic)
    failback = failback_of(mirrored)
    whole = failback.plan()
    for side in (pair.east, pair.west):
        with hidden(side, topic):
            plan = failback.plan()
            assert "to be created and copied as a whole" not in "".join(map(str, plan.warnings))
            with pytest.raises(Refused, match=f"may not DESCRIBE {topic}, so brokers do not tell"):
                failback.begin(plan.hash)
    assert failback.plan().hash == whole.hash


def test_a_failover_does_not_leave_out_a_topic_that_may_not_be_seen(pair: Pair, tmp_path: Path) -> None:
    topic = app_topic(pair)
    produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    produce(pair.east, topic, 5)
    for side, modes in ((pair.east, (RunMode.PLANNED,)), (pair.west, tuple(RunMode))):
        for mode in modes:
            with hidden(side, topic), pytest.raises(Refused, match=f"may not DESCRIBE {topic}, so brokers do not tell"):
                mirrored.failover.begin(mirrored.failover.plan(mode).hash)


@pytest.mark.parametrize("side", ["east", "west"])
def test_what_is_hidden_from_the_data_planes_driver_is_denied_and_goes_on_afterwards(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    topic, other = new_topic(pair.east), new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic, other)
    mirrored.copy()
    mine, cluster = Partition(topic, 0), pair.east if side == "east" else pair.west
    with driving(mirrored, epoch_s=1) as said:
        with hidden(cluster, topic):
            wait_until(
                lambda: mirrored.statuses[mine].kind is FailureKind.DENIED,
                timeout_s=TIMEOUT_S,
                why=f"{topic} is denied on {side}",
            )
            assert "--operation Describe" in (mirrored.statuses[mine].reason or "")
            assert mirrored.statuses[Partition(other, 0)].state is PartitionState.MIRRORING
            warnings = {finding.code for finding in mirrored.failover.plan(RunMode.UNPLANNED).warnings}
            assert "topics_gone_from_source" not in warnings
            refused = [
                row.subject for row in mirror_commands.run_sync(mirrored.link).rows if row.action is SyncAction.REFUSE
            ]
            assert refused == [topic]
        produce(pair.east, topic, 5)
        with monkeypatch.context() as patched:
            patched.setattr("mirror_core.dataplane.epoch_planner.now_ms", lambda: now_ms() + 3_600_000)
            wait_until(
                lambda: mirrored.statuses[mine].state is PartitionState.MIRRORING,
                timeout_s=TIMEOUT_S,
                why="it is tried again",
            )
    assert not [line for line in said if line.startswith("the data plane ended")]
    mirrored.copy()
    assert_parity(mirrored)

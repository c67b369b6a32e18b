"""What the data plane tries again by itself, and what it allows itself: a right, a limit."""

from __future__ import annotations

import secrets
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from mirror_core.dataplane import epoch_planner
from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.kafka.acl_requests import create_acls, delete_acls, wait_until_acls_absent
from mirror_core.kafka.topics import alter_configs, describe_configs, find_late_brokers
from mirror_core.mirrors.describe import describe_mirror
from mirror_core.mirrors.mirror_commands import run_sync
from mirror_core.model.acl import Acl, Operation, Permission, Resource
from mirror_core.model.mirror import FailureKind, PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.timing import now_ms
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.data_plane_thread import driving
from tests.support.failover_runs import commit, committed
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

LARGE = 3_000_000


def test_a_right_that_was_taken_for_a_moment_stops_nothing_for_good(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, other = new_topic(pair.east, 2), new_topic(pair.east)
    sent = [*produce(pair.east, topic, 10), *produce(pair.east, topic, 10, partition=1)]
    mirrored = new_mirror(pair, tmp_path, topic, other)
    parts = [Partition(topic, 0), Partition(topic, 1)]
    denial = Acl(
        resource=Resource.TOPIC,
        name=topic,
        principal="User:mirror-data",
        operation=Operation.READ,
        permission=Permission.DENY,
    )

    def states() -> set[PartitionState]:
        return {mirrored.statuses[p].state for p in parts if p in mirrored.statuses}

    monkeypatch.setattr(epoch_planner, "RETRY_INTERVAL_S", 3600.0)
    with driving(mirrored, epoch_s=1) as said:
        wait_until(lambda: states() == {PartitionState.MIRRORING}, timeout_s=TIMEOUT_S, why="it is copied")
        with as_admin(pair.east) as client:
            create_acls(client, [denial])
        wait_until(lambda: states() == {PartitionState.FAILED}, timeout_s=TIMEOUT_S, why="it is denied")
        assert {mirrored.statuses[p].kind for p in parts} == {FailureKind.DENIED}
        rows = describe_mirror(mirrored.link, mirrored.state, now_ms()).rows
        assert all("The data plane tries again: 20" in (row.reason or "") for row in rows if row.kind)
        with as_admin(pair.east) as client:
            delete_acls(client, [denial])
            wait_until_acls_absent(client, [denial])  # tried too early, it would be tried again an hour later
        sent += produce(pair.east, topic, 10)
        monkeypatch.setattr("mirror_core.dataplane.epoch_planner.now_ms", lambda: now_ms() + 3_600_000)
        wait_until(lambda: states() == {PartitionState.MIRRORING}, timeout_s=TIMEOUT_S, why="it is tried again")
        wait_until(lambda: len(read_all(pair.west, topic)) == len(sent), timeout_s=TIMEOUT_S, why="it goes on")
    assert not [line for line in said if line.startswith("the data plane ended")]
    with about_data():
        assert read_all(pair.west, topic) == sorted(sent)


def test_partitions_that_the_destination_refuses_keep_none_of_the_others_out(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = new_topic(pair.east), "g-" + secrets.token_hex(4)
    sent = produce(pair.east, topic, 10)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    narrow, refused = Partition(topic, 0), Partition(topic, 1)
    denial = Acl(
        resource=Resource.TOPIC,
        name=topic,
        principal="User:mirror-control",
        operation=Operation.ALTER,
        permission=Permission.DENY,
    )
    monkeypatch.setattr(epoch_planner, "RETRY_INTERVAL_S", 3600.0)
    with as_admin(pair.west) as client:
        create_acls(client, [denial])
    with driving(mirrored, epoch_s=1):
        wait_until(lambda: narrow in mirrored.statuses, timeout_s=TIMEOUT_S, why="it is planned")
        wait_until(lambda: len(read_all(pair.west, topic)) == 10, timeout_s=TIMEOUT_S, why="it is copied")
        admin = admin_client(pair.east)
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
        wait_until(lambda: refused in mirrored.statuses, timeout_s=TIMEOUT_S, why="the new partition is planned")
        sent += produce(pair.east, topic, 10)
        commit(pair.east, group, topic, 20)
        wait_until(lambda: len(read_all(pair.west, topic)) == 20, timeout_s=TIMEOUT_S, why="the other one goes on")
        status = mirrored.statuses[refused]
        assert (status.state, status.kind, status.destination_topic_id) == (
            PartitionState.FAILED,
            FailureKind.DENIED,
            "",
        )
        assert mirrored.statuses[narrow].state is PartitionState.MIRRORING
        run_sync(mirrored.link)
        assert committed(pair.west, group, topic) == 20
        with as_admin(pair.west) as client:
            delete_acls(client, [denial])
            wait_until_acls_absent(client, [denial])
        sent += produce(pair.east, topic, 10, partition=1)
        monkeypatch.setattr("mirror_core.dataplane.epoch_planner.now_ms", lambda: now_ms() + 3_600_000)
        wait_until(lambda: len(read_all(pair.west, topic)) == 30, timeout_s=TIMEOUT_S, why="it is tried again")
    with about_data():
        assert read_all(pair.west, topic) == sorted(sent)


def test_a_batch_above_the_sources_present_limit_is_copied_and_no_sync_forbids_it(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, max_message_bytes=str(2 * LARGE))
    sent = large(pair, topic)
    with as_admin(pair.east) as client:
        alter_configs(client, {topic: {"max.message.bytes": None}})
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with about_data():
        assert [record.value for record in read_all(pair.west, topic)] == sent
    run_sync(mirrored.link)
    with as_admin(pair.west) as client:
        assert int(describe_configs(client, [topic])[topic].effective["max.message.bytes"]) >= LARGE
    assert mirrored.statuses[Partition(topic, 0)].state is PartitionState.MIRRORING


def test_larger_and_larger_batches_raise_the_limit_once(pair: Pair, tmp_path: Path) -> None:
    """The source's topic takes larger batches than when it was mirrored, and no sync has seen it."""
    topic = new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with as_admin(pair.east) as client:
        alter_configs(client, {topic: {"max.message.bytes": str(2 * LARGE)}})
        assert find_late_brokers(client, {topic: {"max.message.bytes": str(2 * LARGE)}}) == set()
    sent = [value for more in range(5) for value in large(pair, topic, LARGE + more * 100_000)]
    said = list[str]()
    options = ReplicationOptions(until_caught_up=True)
    raise_if_failed(
        Replication(mirrored.link, LocalRunner, options, stop=threading.Event(), report_line=said.append).run()
    )
    assert len([line for line in said if "refused a batch" in line]) == 1, said
    with about_data():
        assert [record.value for record in read_all(pair.west, topic)] == sent


def large(pair: Pair, topic: str, size: int = LARGE) -> list[bytes]:
    """One batch, of one record."""
    producer = Producer({**pair.east.client_config("admin"), "message.max.bytes": 2 * LARGE})
    producer.produce(topic, bytes(size), partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    return [bytes(size)]

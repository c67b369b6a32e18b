"""Replicas brought back to an offset: all of them cut, one that the others follow, one that was alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from mirror_core.kafka.log_offsets import OffsetPoint
from mirror_core.kafka.reassignment import elect_unclean_leaders
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.cluster_admin import as_admin, tool_properties
from tests.support.data_errors import about_data
from tests.support.kafka_clients import TIMEOUT_S, Record, admin_client, new_topic, produce, read_all, read_all_aiokafka
from tests.support.log_truncation import braided, ends, hundreds
from tests.support.truncated_replicas import await_in_sync, placed, same_logs, truncate
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

END = 1112
TARGET, CUT = 1075, 1050
"""Inside of a transaction, at whose beginning another one is open."""


@pytest.fixture(scope="module")
def east(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    sandbox = Sandbox(tmp_path_factory.mktemp("replicas") / "sandbox")
    try:
        sandbox.up(nodes=3)
        for node in (1, 2, 3):
            sandbox.cluster("west").kill(node)
        yield sandbox.cluster("east")
    finally:
        sandbox.down(delete=True)


def fill(cluster: SandboxCluster, topic: str) -> None:
    hundreds(cluster, topic, 10)
    braided(cluster, topic)
    assert ends(cluster, [topic], OffsetPoint.HIGH_WATERMARK) == {topic: END}


def leader(cluster: SandboxCluster, topic: str) -> int:
    return admin_client(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader


def stop_all(cluster: SandboxCluster) -> None:
    """As an operator does: the last one would wait for a majority that has gone, up to five minutes, and is killed."""
    for node in (1, 2):
        cluster.terminate(node)
    cluster.kill(3)


def start(cluster: SandboxCluster, *nodes: int) -> None:
    cluster.wait_ready({node: cluster.brokers[node - 1].spawn() for node in nodes}, whole_cluster=False)


@about_data()
def assert_cut(cluster: SandboxCluster, topics: Mapping[str, set[int]], before: Mapping[str, list[Record]]) -> None:
    """Every replica ends there, and the log goes on."""
    for topic, replicas in topics.items():
        await_in_sync(cluster, topic, replicas)
        for point in (OffsetPoint.LOG_END, OffsetPoint.HIGH_WATERMARK, OffsetPoint.STABLE_END):
            assert ends(cluster, [topic], point) == {topic: CUT}
        assert read_all(cluster, topic) == before[topic]
        added = produce(cluster, topic, 20)
        assert [record.offset for record in added] == list(range(CUT, CUT + 20))
        assert read_all(cluster, topic) == [*before[topic], *added] == read_all_aiokafka(cluster, topic)
        same = partial(same_logs, cluster, topic, replicas)
        wait_until(same, timeout_s=TIMEOUT_S, why=f"the replicas of {topic} hold the same")


def test_all_replicas_cut_while_all_brokers_are_stopped(east: SandboxCluster, tmp_path: Path) -> None:
    topics = {new_topic(east): {1, 2, 3}, placed(east, 2, 3): {2, 3}}
    for topic in topics:
        fill(east, topic)
    before = {topic: [r for r in read_all(east, topic) if r.offset < CUT] for topic in topics}
    properties = (east.log_dir() / "meta.properties").read_text(encoding="utf-8").splitlines()
    points = {
        "cluster_id": next(line.partition("=")[2] for line in properties if line.startswith("cluster.id")),
        "run": "failback-1",
        "topics": {
            topic: {
                "id": (east.log_dir(3) / f"{topic}-0" / "partition.metadata").read_text(encoding="utf-8").split()[-1],
                "partitions": {"0": TARGET},
            }
            for topic in topics
        },
    }
    file = tmp_path / "points.json"
    file.write_text(json.dumps(points), encoding="utf-8")
    stop_all(east)
    said = [truncate(east, node, "--to", str(file), "--backup", str(tmp_path / str(node))) for node in (1, 2, 3)]
    assert ["not on this broker" in words for words in said] == [True, False, False]
    assert ["the broker was killed" in words for words in said] == [False, False, True]
    start(east, 1, 2, 3)
    assert_cut(east, topics, before)


def test_one_replica_cut_and_elected_is_followed_by_the_other(east: SandboxCluster) -> None:
    topic = placed(east, 1, 2)
    fill(east, topic)
    before = [record for record in read_all(east, topic) if record.offset < CUT]
    east.terminate(2)
    truncate(east, 2, "--partition", f"{topic}-0={TARGET}")
    east.terminate(1)
    start(east, 2)
    wait_until(lambda: leader(east, topic) == -1, timeout_s=TIMEOUT_S, why="nobody leads")

    def elected() -> bool:
        try:
            with as_admin(east) as client:
                elect_unclean_leaders(client, [Partition(topic, 0)])
        except RemoteFault:
            return False  # the controllers have no majority yet
        return leader(east, topic) == 2

    wait_until(elected, timeout_s=TIMEOUT_S, why="broker 2 leads")
    assert ends(east, [topic]) == {topic: CUT}
    start(east, 1)
    assert_cut(east, {topic: {1, 2}}, {topic: before})


def test_a_partition_is_cut_while_it_has_one_replica_only(east: SandboxCluster, tmp_path: Path) -> None:
    topic = new_topic(east)
    fill(east, topic)
    before = [record for record in read_all(east, topic) if record.offset < CUT]

    def reassign(*replicas: int) -> None:
        plan = tmp_path / "reassign.json"
        row = {"topic": topic, "partition": 0, "replicas": list(replicas)}
        plan.write_text(json.dumps({"version": 1, "partitions": [row]}), encoding="utf-8")
        tool = ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--bootstrap-server", east.bootstrap)
        access = ("--command-config", str(tool_properties(east, tmp_path)))
        done = east.tool(*tool, *access, "--reassignment-json-file", str(plan), "--execute")
        assert done.returncode == 0, done.stdout + done.stderr
        await_in_sync(east, topic, set(replicas))

    reassign(3)
    east.terminate(3)
    truncate(east, 3, "--partition", f"{topic}-0={TARGET}")
    start(east, 3)
    wait_until(lambda: leader(east, topic) == 3, timeout_s=TIMEOUT_S, why="broker 3 leads")
    reassign(1, 2, 3)
    assert_cut(east, {topic: {1, 2, 3}}, {topic: before})


def test_a_replica_cut_while_another_one_leads_is_filled_again(east: SandboxCluster) -> None:
    topic = new_topic(east)
    fill(east, topic)
    east.terminate(2)
    truncate(east, 2, "--partition", f"{topic}-0={TARGET}")
    start(east, 2)
    await_in_sync(east, topic, {1, 2, 3})
    assert ends(east, [topic]) == {topic: END}
    assert same_logs(east, topic, {1, 2, 3})

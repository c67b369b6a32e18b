"""Clusters of three nodes: replicated, and in service while one node is dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.sandbox.sandbox import Sandbox
from tests.brokers import admin_client, new_topic, produce, read_all
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path / "three")
    sandbox.up(nodes=3)
    yield sandbox
    sandbox.down(delete=True)


def test_a_cluster_of_three_serves_without_one_and_takes_it_back(three: Sandbox) -> None:
    east = three.cluster("east")
    topic = new_topic(east, partitions=3)
    for number in range(3):
        produce(east, topic, 20, partition=number)
    east.kill(2)
    assert east.pid(2) is None
    for number in range(3):
        produce(east, topic, 20, partition=number)
    assert len(read_all(east, topic)) == 120

    east.start(2)
    admin = admin_client(east)

    def all_in_sync() -> bool:
        seen = admin.list_topics(topic, timeout=10).topics[topic].partitions
        return all(sorted(partition.isrs) == [1, 2, 3] for partition in seen.values())

    wait_until(all_in_sync, timeout_s=60, why="node 2 catches up")
    dumped = east.tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--files",
        str(east.log_dir(2) / f"{topic}-0" / f"{0:020}.log"),
    )
    assert dumped.returncode == 0
    assert "lastOffset: 39" in dumped.stdout

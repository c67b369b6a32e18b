"""One broker of three is out of our reach, and at work for everybody else: what it leads waits, all else is copied."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.static.primitive import i8

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from mirror_core.sandbox.cluster import SandboxCluster
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.writer import make_data_id
from tests.administering import as_admin, known_topic
from tests.brokers import TIMEOUT_S, admin_client, produce
from tests.distant import Distant, distant_clusters
from tests.driving import driving
from tests.mirroring import new_mirror
from tests.relay import Weather
from tests.same import assert_same
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

PARTITIONS = 6


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("unreachable"), nodes=3) as made:
        yield made


def leaders(cluster: SandboxCluster) -> dict[Partition, int]:
    topics = admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics
    return {
        Partition(name, index): one.leader for name, view in topics.items() for index, one in view.partitions.items()
    }


def coordinator(cluster: SandboxCluster, transactional_id: str) -> int:
    """Without it nobody could say in the state topic that he lives."""
    with as_admin(cluster) as client:
        request = FindCoordinatorRequest(key=transactional_id, key_type=i8(1))
        return int(client.call(request, FindCoordinatorResponse).node_id)


def ends(cluster: SandboxCluster, partitions: list[Partition]) -> dict[Partition, int]:
    with as_admin(cluster) as client:
        return dict(list_offsets(client, partitions, OffsetPoint.LOG_END))


def write(distant: Distant, partitions: list[Partition], records: int) -> None:
    for partition in partitions:
        produce(distant.pair.east, partition.topic, records, partition=partition.index)


@pytest.mark.parametrize(("side", "when"), [("east", "before"), ("west", "meanwhile")])
def test_what_others_lead_is_copied(distant: Distant, tmp_path: Path, side: str, when: str) -> None:
    pair = distant.pair
    cluster: SandboxCluster = getattr(pair, side)
    topic = known_topic(pair.east, PARTITIONS)
    partitions = [Partition(topic, index) for index in range(PARTITIONS)]
    mirrored = new_mirror(pair, tmp_path, topic)
    write(distant, partitions, 20)
    mirrored.copy()
    led = leaders(cluster)
    ours = {node for partition, node in led.items() if partition.topic == STATE_TOPIC}
    ours.add(coordinator(cluster, str(make_data_id(mirrored.name))))
    away = next(node for partition, node in led.items() if partition.topic == topic and node not in ours)
    theirs = [partition for partition in partitions if led[partition] == away]
    others = [partition for partition in partitions if led[partition] != away]
    assert theirs
    assert others
    link = [distant.ports[cluster.name][away - 1]]

    def copied(which: list[Partition]) -> bool:
        return ends(pair.west, which) == ends(pair.east, which)

    if when == "before":
        distant.relay.becomes(link, Weather(stalled=True))
    with driving(mirrored, epoch_s=10) as said:
        if when == "meanwhile":
            write(distant, partitions, 20)
            wait_until(lambda: copied(partitions), timeout_s=TIMEOUT_S, why="copying goes on")
            distant.relay.becomes(link, Weather(stalled=True))
        for _ in range(3):
            write(distant, partitions, 20)
            begun = time.monotonic()
            wait_until(lambda: copied(others), timeout_s=60, why="what others lead is copied")
            print(f"{side} {when}: {time.monotonic() - begun:.1f} s")
        assert not copied(theirs)
        distant.relay.becomes(link, Weather())
        begun = time.monotonic()
        wait_until(lambda: copied(partitions), timeout_s=TIMEOUT_S, why="all is copied")
        print(f"{side} {when}: afterwards {time.monotonic() - begun:.1f} s; {said}")
    assert_same(pair, [topic])

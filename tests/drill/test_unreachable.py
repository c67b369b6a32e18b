"""One broker of three is out of our reach, and at work for everybody else: what it leads waits, all else is copied."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirror_core.model.names import Partition
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.writer import make_data_id
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support import unreachable_brokers
from tests.support.cluster_admin import known_topic
from tests.support.data_plane_thread import driving
from tests.support.kafka_clients import TIMEOUT_S
from tests.support.mirrored_topics import new_mirror
from tests.support.topic_equality import assert_same
from tests.support.unreachable_brokers import PARTITIONS, coordinator, ends, leaders, write
from tests.support.waiting import wait_until
from tests.support.wan_clusters import Distant
from tests.support.wan_relay import Weather

distant = unreachable_brokers.distant

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]


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

"""One broker of three takes connections, lets us sign in, and answers not all else: as with a disk that hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.copy.background import RESPONSE_TIMEOUT_S
from mirror_core.model.names import Partition
from mirror_core.state.writer import make_data_id
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import known_topic
from tests.support.data_plane_thread import driving
from tests.support.gap_logs import transaction, transactional
from tests.support.kafka_clients import TIMEOUT_S
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.topic_equality import assert_same
from tests.support.unreachable_brokers import PARTITIONS, coordinator, ends, leaders, write
from tests.support.waiting import wait_until
from tests.support.wan_clusters import Distant, distant_clusters
from tests.support.wan_relay import Weather

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

PRODUCE, FETCH, LIST_OFFSETS, METADATA, MARKERS, PRODUCERS = 0, 1, 2, 3, 27, 61
MOST_S = 2.0
"""What any other may wait, also when it is noticed."""


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("half-dead"), nodes=3) as made:
        yield made


def copied_without(distant: Distant, folder: Path, cluster: SandboxCluster) -> tuple[Mirrored, str, int]:
    """A mirror, its topic, and a broker of this cluster that leads some of it, and that the mirror's own state does not
    need."""
    for _ in range(10):
        topic = known_topic(distant.pair.east, PARTITIONS)
        write(distant, [Partition(topic, index) for index in range(PARTITIONS)], 20)
        mirrored = new_mirror(distant.pair, folder, topic)
        mirrored.copy()
        led = leaders(cluster)
        ours = {node for partition, node in led.items() if partition.topic.startswith("__mirrorbook")}
        ours.add(coordinator(cluster, str(make_data_id(mirrored.name))))
        away = {node for partition, node in led.items() if partition.topic == topic} - ours
        if away:
            return mirrored, topic, away.pop()
    raise AssertionError("every broker is needed")


LONG = pytest.mark.slow


def test_all_else_waits_for_no_gap(distant: Distant, tmp_path: Path) -> None:
    """A broker that appends no markers for a moment: shorter than it is waited for, since late ones would be appended,
    too, and those that are sent in their stead."""
    pair = distant.pair
    mirrored, topic, away = copied_without(distant, tmp_path, pair.west)
    partitions = [Partition(topic, index) for index in range(PARTITIONS)]
    led = leaders(pair.west)
    others = [partition for partition in partitions if led[partition] != away]
    link = [distant.ports[pair.west.name][away - 1]]
    producer = transactional(pair.east)

    def copied(which: list[Partition]) -> bool:
        return ends(pair.west, which) == ends(pair.east, which)

    with driving(mirrored, epoch_s=120):
        transaction(producer, topic, 3, commit=True, partitions=range(PARTITIONS))
        wait_until(lambda: copied(partitions), timeout_s=TIMEOUT_S, why="copying goes on")
        distant.relay.becomes(link, Weather(held=(MARKERS,)))
        begun = time.monotonic()
        transaction(producer, topic, 3, commit=True, partitions=range(PARTITIONS))
        write(distant, others, 1)
        wait_until(lambda: copied(others), timeout_s=60, why="what others lead is copied")
        took_s, held = time.monotonic() - begun, not copied(partitions)
        distant.relay.becomes(link, Weather())
        wait_until(lambda: copied(partitions), timeout_s=TIMEOUT_S, why="all is copied")
    print(f"others waited for {took_s:.1f} s")
    assert held
    assert took_s < RESPONSE_TIMEOUT_S
    assert_same(pair, [topic])


@pytest.mark.parametrize(
    ("side", "held"),
    [
        pytest.param("east", (PRODUCE, FETCH, LIST_OFFSETS, METADATA, PRODUCERS), id="source-all", marks=LONG),
        pytest.param("west", (PRODUCE, FETCH, LIST_OFFSETS, METADATA, PRODUCERS), id="destination-all"),
        pytest.param("east", (FETCH,), id="fetch", marks=LONG),
        pytest.param("west", (PRODUCE,), id="produce"),
    ],
)
def test_all_else_does_not_wait(distant: Distant, tmp_path: Path, side: str, held: tuple[int, ...]) -> None:
    pair = distant.pair
    cluster: SandboxCluster = getattr(pair, side)
    mirrored, topic, away = copied_without(distant, tmp_path, cluster)
    partitions = [Partition(topic, index) for index in range(PARTITIONS)]
    led = leaders(cluster)
    others = [partition for partition in partitions if led[partition] != away]
    link = [distant.ports[cluster.name][away - 1]]

    def copied(which: list[Partition]) -> bool:
        return ends(pair.west, which) == ends(pair.east, which)

    waits = []
    with driving(mirrored, epoch_s=120) as said:
        write(distant, partitions, 20)
        wait_until(lambda: copied(partitions), timeout_s=TIMEOUT_S, why="copying goes on")
        distant.relay.becomes(link, Weather(held=held))
        write(distant, partitions, 20)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            write(distant, others, 1)
            begun = time.monotonic()
            wait_until(lambda: copied(others), timeout_s=60, why="what others lead is copied")
            waits.append(time.monotonic() - begun)
        assert not copied(partitions)
        distant.relay.becomes(link, Weather())
        wait_until(lambda: copied(partitions), timeout_s=TIMEOUT_S, why="all is copied")
    print(f"{len(waits)} times, the longest waits: {[round(wait, 1) for wait in sorted(waits)[-3:]]}; {said}")
    assert waits
    assert max(waits) < MOST_S
    assert_same(pair, [topic])

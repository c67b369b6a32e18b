"""Groups' offsets as they are committed: followed by the data plane, with real consumers and brokers."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from mirror_core.dataplane.driver import Options, Replication
from mirror_core.dataplane.local import LocalRunner
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.groups import commit_offsets, fetch_offsets
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import Link
from tests.brokers import Pair, new_topic, produce
from tests.mirroring import Mirrored, new_mirror
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster


@contextmanager
def replicating(link: Link) -> Iterator[Replication]:
    """The data plane, in a thread of this process, until the end of the block."""
    stop = threading.Event()
    driver = Replication(link, LocalRunner, Options(), stop=stop, say=lambda line: None)
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        yield driver
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def offset_on(cluster: ClusterClient, group: str, topic: str) -> int | None:
    found = fetch_offsets(cluster, group).committed.get(Partition(topic, 0))
    return None if found is None else int(found.offset)


@pytest.fixture
def group() -> str:
    return "g-" + secrets.token_hex(4)


@pytest.fixture
def topic(pair: Pair) -> str:
    return new_topic(pair.east)


@pytest.fixture
def mirrored(pair: Pair, topic: str, group: str, tmp_path_factory: pytest.TempPathFactory) -> Mirrored:
    produce(pair.east, topic, 20)
    made = new_mirror(pair, tmp_path_factory.mktemp("evidence"), topic, groups=(group + ".*",))
    made.copy()
    return made


@pytest.fixture
def west(mirrored: Mirrored) -> Iterator[ClusterClient]:
    with ClusterClient(mirrored.link.destination) as client:
        yield client


@pytest.fixture
def commit(mirrored: Mirrored, group: str, topic: str) -> Iterator[Callable[[int], None]]:
    """As an administrator commits on the source."""
    with ClusterClient(mirrored.link.source) as client:
        yield lambda offset: _must(commit_offsets(client, group, {Partition(topic, 0): (Offset(offset), "")}))


def _must(refused: dict[Partition, str]) -> None:
    assert refused == {}


def test_a_commit_is_on_the_destination_within_a_second(
    mirrored: Mirrored, west: ClusterClient, commit: Callable[[int], None], group: str, topic: str
) -> None:
    commit(3)
    with replicating(mirrored.link):
        wait_until(lambda: offset_on(west, group, topic) == 3, timeout_s=60, why="what was there before is taken over")
        took = []
        for offset in (5, 9, 4, 20):
            commit(offset)
            began = time.monotonic()
            there = partial(offset_on, west, group, topic)
            while there() != offset and time.monotonic() < began + 10:
                time.sleep(0.02)
            took.append(time.monotonic() - began)
        assert sorted(took)[1] < 1.0, took
        wait_until(
            lambda: (
                (seen := mirrored.state.groups.get(mirrored.name)) is not None
                and seen.followed
                and time.time() * 1000 - seen.synced_ms < 8000
            ),
            timeout_s=30,
            why="the state says how old groups' offsets are",
        )

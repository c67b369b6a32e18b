"""A copy without a fault is found to be without one, again and again, while its source is written and cleaned."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from tests.support.checked_threads import beside
from tests.support.cli_process import Forked, mirrorbook
from tests.support.cluster_admin import broker_setting
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.mirrored_topics import new_mirror
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

HELD: Final = 1_000_000
RECORDS: Final = 2_000_000
"""To begin with: more than so many of them have keys of their own, and are held, whatever the cleaner takes."""
PARTITIONS: Final = 50
ROUNDS: Final = 20
KEYS: Final = 40_000
"""In each partition; records are replaced by later ones again and again."""
CLEANED: Final = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_bytes": str(1 << 20),
    "segment_ms": "30000",  # of small segments a broker may come to have more than its system maps for one process
    "min_compaction_lag_ms": "0",
    "delete_retention_ms": "600000",  # a copier that is later than that may miss tombstones, and parity finds it
}


class Writer:
    """Keyed records, one in ten a tombstone, a transaction's worth of nothing."""

    def __init__(self, pair: Pair, topic: str) -> None:
        self.topic = topic
        self._producer = Producer({**pair.east.client_config("admin"), "linger.ms": 50, "batch.size": 65536})
        self._chance = random.Random(11)

    def write(self, count: int) -> None:
        for number in range(count):
            key = b"k%d" % self._chance.randrange(KEYS)
            value = None if self._chance.random() < 0.1 else b"%d " % number + bytes(100)
            while True:
                try:
                    self._producer.produce(self.topic, value, key, partition=self._chance.randrange(PARTITIONS))
                    break
                except BufferError:
                    self._producer.poll(0.1)
        assert self._producer.flush(TIMEOUT_S) == 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Some thousand records a second, meanwhile."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(0.1):
                self.write(500)

        with beside(go_on, ended.set, name="writer"):
            yield


def end(pair: Pair, side: str, topic: str) -> int:
    """Sum of the log ends; 0 where there is no such topic yet."""
    with ClusterClient(load_config(pair.config_path).cluster(side)) as client:
        if len(view := client.metadata([topic]).topics) and len(view[topic].partitions) == PARTITIONS:
            return sum(
                list_offsets(client, [Partition(topic, n) for n in range(PARTITIONS)], OffsetPoint.LOG_END).values()
            )
        return 0


@pytest.mark.timeout(3600)
def test_nothing_is_found_where_there_is_nothing(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, PARTITIONS, **CLEANED)
    writer = Writer(pair, topic)
    writer.write(RECORDS)
    mirrored = new_mirror(pair, tmp_path, topic)
    config = str(pair.config_path)
    plane = Forked("replicate", mirrored.name, "--runner", "local", "--config", config, log=tmp_path / "log")
    try:
        with (
            broker_setting(pair.east, "log.cleaner.backoff.ms", "200"),
            broker_setting(pair.west, "log.cleaner.backoff.ms", "200"),
            writer.at_work(),
        ):
            wait_until(
                lambda: end(pair, "west", topic) >= RECORDS,
                timeout_s=600,
                why="what was there is copied",
            )
            before = 0
            for number in range(ROUNDS):
                compared = mirrorbook(
                    "parity", mirrored.name, "--whole", "--runner", "local", "--config", config, "--json",
                    "--output", str(tmp_path / f"round-{number}"), timeout_s=600,
                )  # fmt: skip
                assert compared.returncode in (0, 1), (number, compared.stderr)
                found = json.loads(compared.stdout)
                ends = end(pair, "east", topic)
                assert (found["verdict"], found["findings"]) == ("passed", []), number
                assert ends > before, "it is written meanwhile"
                assert HELD <= found["records"] < ends, "some were taken by the cleaner"
                before = ends
                print(f"round {number}: {found['records']} records of {ends} offsets")
    finally:
        plane.terminate()
        plane.wait(60)

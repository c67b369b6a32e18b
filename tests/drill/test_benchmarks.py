"""The benchmarks on real brokers: data sets are what they say, and a copier's figures are of the copy."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.copy import Bench
from benchmarks.datasets import SETS, load
from benchmarks.ground import DESTINATION, SOURCE, Ground
from benchmarks.latency import Window, figures, latencies_ms, traffic
from benchmarks.traffic import PAIR
from mirror_core.kafka.client import ClusterClient
from tests.support import kafka_clients
from tests.support.kafka_clients import Pair
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.drill, pytest.mark.cluster]


@pytest.fixture
def at(pair: Pair, tmp_path: Path) -> Ground:
    """The benchmarks' ground, on the clusters that all tests share."""
    ground = Ground(tmp_path)
    ground.sandbox = pair.sandbox
    ground.direct_path = ground.config_path = pair.config_path
    return ground


def ends(at: Ground, cluster: str, topic: str) -> int:
    with ClusterClient(at.config.cluster(cluster)) as client:
        return at.ends(client, topic)


def new_name() -> str:
    return "bench-" + secrets.token_hex(5)


def test_half_of_a_compacted_sets_offsets_hold_no_record(at: Ground) -> None:
    count = 2_000
    data = replace(SETS["d5"], partitions=2)
    loaded = load(at.source, new_name(), data, count)
    # One more record for each partition begins the segment that the cleaner leaves alone, and one key has two values.
    assert loaded.offsets == count + data.partitions
    assert count / 2 <= loaded.records <= count / 2 + 2 * data.partitions
    assert loaded.value_bytes == loaded.records * data.value_bytes
    # The holes are inside batches: a cleaner that had removed whole ones would have left fewer.
    assert loaded.batches >= loaded.log_bytes / data.batch_bytes


def test_batches_are_as_large_as_the_set_says(at: Ground) -> None:
    loaded = load(at.source, new_name(), SETS["d1"], 16_000)
    assert 0.8 * SETS["d1"].batch_bytes < loaded.log_bytes / loaded.batches <= SETS["d1"].batch_bytes


def test_a_copy_is_measured(at: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_name()
    monkeypatch.setattr("benchmarks.copy.TOPIC", topic)
    loaded = load(at.source, topic, SETS["d1"], 64_000)
    found = Bench(at, SETS["d1"], loaded).copy("local")
    assert found["copy_s"] > 0
    assert found["start_s"] > 0
    assert 0 < found["copier_cpu_s_per_gb"] < found["all_cpu_s_per_gb"]
    assert found["west_broker_cpu_s_per_gb"] > 0
    assert ends(at, DESTINATION, topic) == ends(at, SOURCE, topic) == 64_000


def test_latency_is_that_of_each_record(at: Ground, tmp_path: Path) -> None:
    topic, pairs = kafka_clients.new_topic(at.source, partitions=8), tmp_path / "pairs"
    begin = time.time_ns()
    with traffic(at.source, "read", topic, f"--out={pairs}"):
        with traffic(at.source, "write", topic, "--rate=500"):
            wait_until(lambda: ends(at, SOURCE, topic) >= 500, timeout_s=60, why="records at a rate")
        sent = ends(at, SOURCE, topic)
        wait_until(lambda: pairs.stat().st_size >= sent * PAIR.size, timeout_s=60, why="the reader sees all")
    found = figures(latencies_ms(pairs.read_bytes(), Window(begin, time.time_ns())))
    assert found["records"] == sent
    assert 0 < found["p50_ms"] <= found["p99_ms"]

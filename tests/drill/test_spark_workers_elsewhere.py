"""Spark workers on other machines: lags are known, epochs hand their claims on, and what dies there costs no record."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest
from confluent_kafka import Producer

from tests.support.gap_logs import transaction, transactional
from tests.support.kafka_clients import Pair, new_topic, produce
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.network_namespaces import Machines, machines, reachable_clusters
from tests.support.replicate_process import Application
from tests.support.spark_standalone import ROOT, Standalone, standalone
from tests.support.topic_equality import assert_same
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.drill, pytest.mark.cluster, pytest.mark.spark, pytest.mark.heavy]

PARTITIONS: Final = 4
EPOCH_S: Final = 4.0
PATIENCE_S: Final = patience(120.0)


class Transactions(Application):
    """One after the other, each in all partitions: so a gap is due in any moment, also in which epochs change."""

    def __init__(self, producer: Producer, topic: str) -> None:
        super().__init__()
        self._producer, self._topic = producer, topic

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            number += 1
            transaction(self._producer, self._topic, 3, commit=number % 5 > 0, partitions=range(PARTITIONS))


class Driver:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def given(self) -> int:
        """Claims that went from one epoch's task to the next one's."""
        return max(map(int, re.findall(r"^given (\d+)$", self.said, re.MULTILINE)), default=0)

    def hands_on(self, more: int) -> None:
        """Return when it has done so with so many more."""
        wanted = self.given() + more
        self._waits(lambda: self.given() >= wanted, f"{wanted} claims are handed on")

    def knows_lags(self, *topics: str) -> None:
        """Of all their partitions: a topic has none as long as one of them is unknown."""
        self._waits(lambda: self._lags() >= set(topics), f"the lags of {topics} are known")

    def ends(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.said
        assert "Traceback" not in self.said

    def _lags(self) -> set[str]:
        """Topics whose lag is known."""
        found = re.search(r"^metrics: (\S+)$", self.said, re.MULTILINE)
        if found is None:
            return set()
        text = httpx.get(found.group(1), trust_env=False, timeout=30).text
        return set(re.findall(r'^mirrorbook_lag_offsets\{[^}]*\btopic="([^"]+)"', text, re.MULTILINE))

    def _waits(self, cond: Callable[[], bool], why: str) -> None:
        def so() -> bool:
            assert self.process.poll() is None, self.said
            return cond()

        try:
            wait_until(so, timeout_s=PATIENCE_S, why=why)
        except AssertionError:
            print(self.said)
            raise


@contextmanager
def driver(mirrored: Mirrored, cluster: Standalone, folder: Path) -> Iterator[Driver]:
    settings = {
        "config": str(mirrored.pair.config_path),
        "mirror": mirrored.name,
        "master": cluster.master,
        "tasks": 2,
        "epoch_s": EPOCH_S,
        "conf": {"spark.driver.host": cluster.machines.here, "spark.executor.memory": "512m"},
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    log = folder / "driver.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "tests.drill.far_driver", str(folder / "settings.json")]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Driver(process, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def there() -> Iterator[Machines]:
    with machines(2) as made:
        yield made


@pytest.fixture(scope="module")
def far(there: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with reachable_clusters(tmp_path_factory.mktemp("reachable"), there.here) as pair:
        yield pair


@pytest.fixture(scope="module")
def cluster(there: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(there, tmp_path_factory.mktemp("standalone") / "spark") as made:
        yield made


def test_a_data_plane_on_other_machines_is_seen_and_survives_them(
    far: Pair, cluster: Standalone, tmp_path: Path
) -> None:
    topic, plain = new_topic(far.east, partitions=PARTITIONS), new_topic(far.east)
    produce(far.east, plain, 500)
    mirrored = new_mirror(far, tmp_path, topic, plain)
    writer = Transactions(transactional(far.east), topic)
    with driver(mirrored, cluster, tmp_path) as driving:
        with writer:
            driving.knows_lags(topic, plain)
            driving.hands_on(PARTITIONS)

            cluster.kill("worker-0")
            driving.hands_on(PARTITIONS)

            cluster.kill("master")
            driving.hands_on(PARTITIONS)  # who has executors needs no master
            cluster.start_master()
            driving.hands_on(PARTITIONS)
            driving.knows_lags(topic, plain)
        driving.ends()
    mirrored.copy()
    assert_same(far, [topic, plain])


def test_spark_submit_brings_the_package_and_the_settings(far: Pair, cluster: Standalone, tmp_path: Path) -> None:
    topic = new_topic(far.east, partitions=2)
    produce(far.east, topic, 200)
    mirrored = new_mirror(far, tmp_path, topic)
    package = shutil.make_archive(str(tmp_path / "package"), "zip", ROOT, "mirror_core")
    here = ("--conf", f"spark.driver.host={cluster.machines.here}", "--conf", "spark.mirrorbook.port=0")
    options = ("--until-caught-up", "--config", str(far.config_path), "--receipts", str(tmp_path))
    said = cluster.submit(
        *here,
        "--py-files",
        package,
        str(ROOT / "mirror_core" / "cli" / "submit.py"),
        "replicate",
        mirrored.name,
        *options,
    )
    assert "caught up: yes" in said
    assert_same(far, [topic])
    seen = httpx.get(f"{cluster.page}/json/", trust_env=False, timeout=30).json()["completedapps"]
    assert "submit.py" in [application["name"] for application in seen], "on the cluster's executors"


COMPARED: Final = """
import json, sys
from pathlib import Path
from pyspark import SparkContext
from mirror_core.kafka.config import load_config
from mirror_core.parity.comparable_ranges import read_parity_scope
from mirror_core.spark.parity_job import SparkParity
from mirror_core.state.mirror_link import find_mirror_link
path, name, master, here = Path(sys.argv[1]), *sys.argv[2:]
conf = {"spark.driver.host": here, "spark.executor.memory": "512m"}
check = SparkParity(path, master, chunk=200, demands=None, conf=conf)
link, state = find_mirror_link(load_config(path), name)
ranges, mirror = read_parity_scope(link, state).ranges, link.mirror
found = check(mirror.source_identity, mirror.destination_identity, ranges, None, lambda _: print("round", flush=True))
tracker = SparkContext.getOrCreate().statusTracker()
stages = [stage for number in range(200) if (stage := tracker.getStageInfo(number))]
failed, most = sum(stage.numFailedTasks for stage in stages), max(stage.numTasks for stage in stages)
print(json.dumps([found.verdict, found.records, len(stages), failed, most]))
"""


def test_a_worker_that_dies_in_a_comparison_costs_each_of_its_tasks_a_chunk(
    far: Pair, cluster: Standalone, tmp_path: Path
) -> None:
    if not cluster.runs("worker-0"):  # another test may have killed it
        cluster.start_workers(0)
    topic = new_topic(far.east, partitions=PARTITIONS)
    for number in range(PARTITIONS):
        produce(far.east, topic, 6_000, partition=number)
    mirrored = new_mirror(far, tmp_path, topic)
    mirrored.copy()
    command = [sys.executable, "-c", COMPARED, str(far.config_path), mirrored.name, cluster.master]
    log = tmp_path / "parity.log"
    with (
        log.open("wb") as said,
        subprocess.Popen([*command, cluster.machines.here], stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "round\n", log.read_text(encoding="utf-8")
        cluster.kill("worker-0")
        rest = process.stdout.read().splitlines()
    assert process.returncode == 0, log.read_text(encoding="utf-8")
    verdict, records, rounds, failed, tasks = json.loads(rest[-1])
    assert (verdict, records) == ("passed", 6_000 * PARTITIONS)
    assert rounds >= 6, "each task of each has a chunk"
    assert failed <= tasks, "of one round, if any"

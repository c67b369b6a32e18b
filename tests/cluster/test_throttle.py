"""The throttle of a mirror, changed while it is being copied."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide.task_assignment import RateLimiter
from mirror_core.mirrors import mirror_commands
from tests.cluster.desk import Desk, Said
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.replicate_process import Progress
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
RATE = 200_000
RECORDS, SIZE = 3_000, 1_000


def set_throttle(mirrored: Mirrored, rate: int | None) -> None:
    mirror_commands.throttle_mirror(mirrored.link, rate)


@pytest.mark.timed
def test_a_throttle_holds_back_until_it_is_lifted(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    producer = Producer({**pair.east.client_config("admin"), "batch.size": 16_384, "linger.ms": 5})
    for _ in range(RECORDS):
        producer.produce(topic, value=bytes(SIZE))
    assert producer.flush(TIMEOUT_S) == 0
    mirrored = new_mirror(pair, tmp_path, topic)
    set_throttle(mirrored, RATE)
    stop = threading.Event()
    options = ReplicationOptions(epoch_s=4.0)
    run = Replication(mirrored.link, LocalRunner, options, stop=stop, report_line=lambda line: None)
    there = Progress(mirrored, "west", topic)
    with ThreadPoolExecutor(1) as pool:
        begun = time.monotonic()
        ending = pool.submit(run.run)
        try:
            copied = wait_until(
                lambda: there.exists() and there.total(), timeout_s=TIMEOUT_S, why="the first records are copied"
            )
            # Each epoch's first answer comes at once; batches may make an answer half as long again as was asked for.
            elapsed = time.monotonic() - begun
            answer = 1.5 * RateLimiter(RATE).limit_fetch_bytes(8 << 20)
            assert copied * SIZE <= RATE * elapsed + answer * (1 + elapsed // 4.0)
            assert copied < RECORDS
            set_throttle(mirrored, None)
            wait_until(lambda: there.total() == RECORDS, timeout_s=TIMEOUT_S, why="everything is copied")
        finally:
            stop.set()
            ending.result(TIMEOUT_S)
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_the_throttle_is_said_and_nonsense_is_refused(desk: Desk) -> None:
    mirrored = desk.started(new_topic(desk.pair.east))
    said = desk.run("mirror", "throttle", mirrored.name, "5MB/s")
    plan = format_sentence("throttle_effect", mirrored.name, "east", "west", "5.0")
    assert said == Said(0, plan + format_sentence("throttle_from_next_start", mirrored.name, "5.0"), "")
    assert mirrored.link.mirror.throttle == 5_000_000
    assert "5.0 MB/s" in desk.run("mirror", "describe", mirrored.name).out
    assert desk.run("mirror", "throttle", mirrored.name, "off").code == 0
    assert mirrored.link.mirror.throttle is None
    assert desk.run("mirror", "throttle", mirrored.name, "5Mb").code == 2
    assert desk.run("mirror", "throttle", mirrored.name, "0") == Said(2, "", format_sentence("throttle_of_zero", "0"))

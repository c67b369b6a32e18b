"""What Prometheus is told, against what was really copied; also when a partition fails, and when the source dies."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror_core.cli.http_server import serve_metrics
from mirror_core.dataplane.counters import Counters
from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.progress import ProgressTracker
from mirror_core.dataplane.prometheus_collector import MetricsCollector
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.evidence.file_store import LocalFolder
from mirror_core.model.names import Partition
from tests.cluster.desk import Desk
from tests.support.checked_threads import beside
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.metrics_scrape import ADDRESS, Scraped
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.receipt_files import rows
from tests.support.replicate_process import PATIENCE_S, copier
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster
EPOCH_S = 3.0


@contextmanager
def measured(mirrored: Mirrored) -> Iterator[str]:
    """Copy in a thread of this process with short epochs; the endpoint's address. Ends well, or the test does not."""
    stop, counters, said = threading.Event(), Counters(), list[str]()
    progress, link = ProgressTracker(), mirrored.link
    options = ReplicationOptions(epoch_s=EPOCH_S, receipts=str(mirrored.evidence / "receipts"), progress=progress)
    copying = Replication(link, LocalRunner, options, stop=stop, report_line=lambda line: None, counters=counters)

    with (
        serve_metrics(("127.0.0.1", 0), MetricsCollector(link.mirror, counters, progress), said.append),
        beside(copying.run, stop.set, name="copying", timeout_s=TIMEOUT_S),
    ):
        yield said[0].removeprefix("metrics: ")


def test_figures_are_those_of_the_copy_and_a_failed_partition_is_seen(pair: Pair, tmp_path: Path) -> None:
    good, bad = new_topic(pair.east, partitions=3), new_topic(pair.east)
    mirrored = new_mirror(pair, tmp_path, good, bad)
    for topic in (good, bad):
        produce(pair.east, topic, 50)
    mirrored.copy()
    produce(pair.west, bad, 1)  # a foreign record
    produce(pair.east, bad, 10)
    for partition in range(3):
        produce(pair.east, good, 100 * (partition + 1), partition=partition, batch_num_messages="20")

    with measured(mirrored) as url:

        def settled() -> Scraped | None:
            now = Scraped(url)
            copied = now("copied_records_total", topic=good) == 600 and now("lag_seconds", topic=good) == 0
            beats = now("heartbeats_total", outcome="acknowledged") and now("source_looked_at_timestamp_seconds")
            return now if copied and beats and now("partitions", topic=bad, state="FAILED") else None

        now = wait_until(settled, timeout_s=TIMEOUT_S, why="600 records are counted, none is left, the bad one fails")
        assert now is not None
        lease = mirrored.state.leases[mirrored.name]

    assert now("partitions", topic=bad, state="FAILED") == 1
    assert now("partitions", topic=good, state="MIRRORING") == 3
    assert now("partitions", topic=good, state="FAILED") == 0
    assert now("partitions", topic=bad, state="MIRRORING") is None
    assert now("lag_offsets", topic=good) == now("lag_unknown_partitions", topic=good) == 0
    assert now("lag_estimated_records", topic=good) == now("lag_estimated_bytes", topic=good) == 0
    assert now("lag_offsets", topic=bad) is now("lag_unknown_partitions", topic=bad) is None
    assert now("copied_records_total", topic=bad) in (None, 0), "nothing was added behind the foreign record"
    assert now("lease_generation") == lease.generation
    assert now("retries_total", what="task") == now("retries_total", what="plan") == 0
    stored = [r for r in rows(LocalFolder(mirrored.evidence / "receipts"), mirrored.name) if r["topic"] == good]
    assert sum(r["records"] for r in stored) == 600
    assert sum(r["bytes"] for r in stored) == now("copied_bytes_total", topic=good)
    assert sum(r["batches"] for r in stored) == now("copied_batches_total", topic=good)
    seen_s = now("source_looked_at_timestamp_seconds")
    assert seen_s is not None
    assert abs(time.time() - seen_s) < 60
    assert now("heartbeats_total", outcome="acknowledged")
    assert len(read_all(pair.west, good)) == 650


@pytest.mark.drill
def test_a_dead_source_makes_the_lag_unknown_until_it_is_back(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, partitions=2)
    produce(pair.east, topic, 40)
    mirrored = new_mirror(pair, tmp_path, topic)

    with measured(mirrored) as url:

        def caught_up() -> bool:
            now = Scraped(url)
            return now("copied_records_total", topic=topic) == 40 and now("lag_offsets", topic=topic) == 0

        wait_until(caught_up, timeout_s=TIMEOUT_S, why="it has copied all, and knows it")
        pair.east.kill()
        try:
            wait_until(
                lambda: Scraped(url)("lag_unknown_partitions", topic=topic) == 2, timeout_s=TIMEOUT_S, why="it is dead"
            )
            dead = Scraped(url)
            for name in ("lag_offsets", "lag_seconds", "lag_estimated_records", "lag_estimated_bytes"):
                assert dead(name, topic=topic) is None, f"{name} is not known now"
            seen = dead("source_seen_timestamp_seconds", topic=topic)
            assert seen is not None
            assert dead("copied_records_total", topic=topic) == 40
            wait_until(
                lambda: Scraped(url)("retries_total", what="plan"), timeout_s=TIMEOUT_S, why="planning is tried again"
            )
            assert Scraped(url)("source_seen_timestamp_seconds", topic=topic) == pytest.approx(seen, abs=0.1)
        finally:
            pair.east.start()
        produce(pair.east, topic, 5)
        wait_until(
            lambda: Scraped(url)("copied_records_total", topic=topic) == 45 and caught_up_again(url, topic, seen),
            timeout_s=120,
            why="it goes on when the source is back",
        )


def caught_up_again(url: str, topic: str, seen: float) -> bool:
    now = Scraped(url)
    return now("lag_offsets", topic=topic) == 0 and (now("source_seen_timestamp_seconds", topic=topic) or 0) > seen


def test_the_command_serves_while_it_copies_and_ends_cleanly(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 30)
    mirrored = new_mirror(pair, tmp_path, topic)

    with copier(mirrored, "local", tmp_path / "log", "--metrics", "0") as copying:
        wait_until(lambda: ADDRESS.search(copying.said), timeout_s=PATIENCE_S, why="it says its address")
        url = ADDRESS.findall(copying.said)[0]
        assert url.startswith("http://127.0.0.1:")
        wait_until(lambda: Scraped(url)("lag_offsets", topic=topic) == 0, timeout_s=PATIENCE_S, why="all is copied")
        now = Scraped(url)
        assert now("data_plane_info", mirror=mirrored.name, source="east", destination="west") == 1
        assert now("heartbeat_timestamp_seconds", mirror=mirrored.name) is not None
        copying.process.terminate()
        assert copying.ends() == 0, copying.said
        assert "Traceback" not in copying.said
    assert len(read_all(pair.west, topic)) == 30


def test_a_port_that_is_taken_is_said_before_anything_is_done(desk: Desk) -> None:
    topic = new_topic(desk.pair.east)
    mirrored = desk.started(topic)
    before = desk.traces()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = desk.run("replicate", mirrored.name, "--runner", "local", "--metrics", str(port))
    assert said.code == 2
    assert said.err == (format_sentence("metrics_cannot_be_served_on_address", port))
    assert desk.traces() == before
    assert Partition(topic, 0) not in mirrored.statuses


def test_what_is_no_address_is_turned_down_with_an_example(desk: Desk) -> None:
    said = desk.run("replicate", "m-never", "--metrics", "nine")
    assert said.code == 2
    assert "'nine' is not [HOST:]PORT, such as 9465" in re.sub(r"\s*│\s*", " ", said.err)

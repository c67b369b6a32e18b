"""Logs that begin late: said before, told meanwhile, and copied at their offsets."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_core.copy import batch_producer
from mirror_core.copy.batch_builder import build_seed_batches
from mirror_core.copy.partition_replicator import PartitionReplicator
from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.progress import PartitionFigures, ProgressTracker
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.decide import gaps_and_resume
from mirror_core.decide.gaps_and_resume import ResumePoint
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.produce_link import ProduceBatch, ProduceLink
from mirror_core.kafka.topics import delete_records
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.model.task_messages import PartitionAssignment
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import Desk
from tests.support.cluster_admin import as_admin
from tests.support.gap_assignments import client_connection
from tests.support.gap_logs import assert_equal, offsets_for
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce
from tests.support.log_shapes import HOUR_MS, T2020
from tests.support.mirrored_topics import new_mirror

pytestmark = pytest.mark.cluster
FAR = 3_000_000
NOBODY = (1 << 62) + 5
"""A producer id that no broker hands out."""


def cut(cluster: SandboxCluster, topic: str, start: int) -> None:
    with as_admin(cluster) as client:
        delete_records(client, {Partition(topic, 0): Offset(start)})


def far_topic(cluster: SandboxCluster) -> str:
    """A topic that begins at FAR and holds ten records."""
    topic = new_topic(cluster)
    partition = Partition(topic, 0)
    with as_admin(cluster) as client, client_connection(client, partition) as connection:
        link = ProduceLink[str](connection)
        seeded = PartitionReplicator(
            PartitionAssignment(partition=partition, source_topic_id="", destination_topic_id="")
        )
        seeded.resume_at(ResumePoint(offset=0, sequence=0, gap_end=0, seed_end=FAR, must_check_tail=False))
        while seeded.progress.seeded < FAR:
            for _, batch in build_seed_batches(seeded.progress, NOBODY, 0):
                link.send([ProduceBatch(topic, 0, batch, "seed")])
                assert [row.error for _, row in link.read_responses()] == [0]
    cut(cluster, topic, FAR)
    produce(cluster, topic, 10)
    return topic


def test_a_log_that_begins_late_is_seeded_up_to_its_beginning(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 20)
    cut(pair.east, topic, 5)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    assert_equal(pair, topic, records=15)
    produce(pair.east, topic, 20)
    cut(pair.east, topic, 32)
    mirrored.copy()
    assert_equal(pair, topic, records=8)


@pytest.mark.slow
def test_a_log_that_begins_at_three_million_is_announced_and_seeded_though_it_is_interrupted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, topic, near = desk.pair, far_topic(desk.pair.east), new_topic(desk.pair.east)
    partition = Partition(topic, 0)
    produce(pair.east, near, 20)
    cut(pair.east, near, 5)
    said = desk.create("--topics", topic, "--topics", near, "--dry-run")
    assert said.code == 0, said.err
    assert "to copy: 2 partitions, 25 offsets, " in said.out
    assert "to seed: 1 partitions begin late, 3,000,000 offsets; estimate: 2.7 MB on each replica" in said.out
    assert "to fill: 1 partitions begin late, 5 offsets; estimate: 390 B on each replica" in said.out
    assert "before their first records are copied: 3 s or less (estimate)" in said.out

    mirrored = desk.started(topic)
    progress, calls, described, told = ProgressTracker(), list[int](), list[str](), list[PartitionFigures]()

    def delete_or_break(client: ClusterClient, until: dict[Partition, Offset]) -> dict[Partition, Offset]:
        calls.append(until[partition])
        if len(calls) == 2:
            described.extend(desk.run("mirror", "describe", mirrored.name, *more).out for more in ((), ("--json",)))
            raise Unreachable("broken by the test")
        if len(calls) > 2 and not told:
            # The task tells of itself once a second, between two turns; this holds up its turn.
            deadline = time.monotonic() + 3
            while partition not in progress.partitions():
                if time.monotonic() > deadline:
                    raise Unreachable("broken once more")
                time.sleep(0.05)
            told.append(progress.partitions()[partition])
        return delete_records(client, until)

    monkeypatch.setattr(batch_producer, "delete_records", delete_or_break)
    options = ReplicationOptions(until_caught_up=True, progress=progress)
    stop = threading.Event()
    summary = Replication(mirrored.link, LocalRunner, options, stop=stop, report_line=lambda line: None).run()
    assert (summary.caught_up, summary.failed) == (True, {})
    assert told[0].to_seed is not None
    assert told[0].to_seed == FAR - told[0].position > 0
    assert progress.partitions()[partition].to_seed == 0, "its last word"
    assert len(calls) > 3
    assert calls[-1] == FAR
    assert_equal(pair, topic, records=10)
    # The first 200,000 went alone, since the leader knew nothing yet; 800,000 more were acknowledged.
    [row] = json.loads(described[1])["rows"]
    assert (row["position"], row["source_start"]) == (1_000_000, FAR)
    assert re.search(rf"{topic}-0\W+1000000\W+3000000\W+2000000\W", described[0])
    assert "source begins" not in desk.run("mirror", "describe", mirrored.name).out


def test_lookups_by_time_see_through_what_was_seeded(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of old records in many segments: a time of today in the first one would hide all that come behind it."""
    monkeypatch.setattr(gaps_and_resume, "MAX_MARKED_START", 2)
    topic = new_topic(pair.east, retention_ms="-1", segment_bytes=str(1 << 20))
    times = [T2020 + number * HOUR_MS for number in range(40)]
    producer = Producer(pair.east.client_config("admin"))
    for time_ms in times:
        producer.produce(topic, value=bytes(60_000), timestamp=time_ms)
        producer.flush(TIMEOUT_S)
    cut(pair.east, topic, 5)
    new_mirror(pair, tmp_path, topic).copy()
    assert_equal(pair, topic, records=35)
    asked = [time_ms + step for time_ms in times for step in (-1, 0, 1)]
    found = offsets_for(pair.west, topic, asked)
    assert found == offsets_for(pair.east, topic, asked)
    assert set(found.values()) == {*range(5, 40), None}

"""What crosses, and what doesn't: real brokers on both sides, looked at with other people's tools."""

from __future__ import annotations

import re
import struct
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.topics import delete_records, describe_configs
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Offset, Partition
from mirror_core.wire.batch import HEADER_SIZE, split_batches
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.cluster_admin import alter_topic, as_admin
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all, read_all_aiokafka
from tests.support.mirrored_topics import Mirrored, new_mirror, replicate
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def log_file(cluster: SandboxCluster, partition: str) -> Path:
    return cluster.log_dir() / partition / f"{0:020}.log"


def payloads(log: bytes) -> list[tuple[int, int, bytes]]:
    """Base offset, last offset delta and bytes after the header, of each batch in a segment."""
    whole = split_batches(memoryview(bytearray(log)))
    found = [(h.base_offset, h.last_offset_delta, bytes(batch[HEADER_SIZE:])) for h, batch in whole]
    assert found, "the segment holds no batch"
    return found


def dumped(cluster: SandboxCluster, partition: str) -> list[str]:
    """DumpLogSegments of the first segment, without what a copy changes: producer fields, leader epoch and CRC."""
    ran = cluster.tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--print-data-log",
        "--files",
        str(log_file(cluster, partition)),
    )
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("baseOffset", "| offset"))]
    assert all("isvalid: true" in line for line in lines if line.startswith("baseOffset"))
    changed = r"(producerId|producerEpoch|baseSequence|sequence|partitionLeaderEpoch|crc|lastSequence): -?\d+ ?"
    return [re.sub(changed, "", line) for line in lines]


@pytest.mark.parametrize(
    "codec", [codec if codec in ("none", "zstd") else pytest.param(codec, marks=pytest.mark.slow) for codec in CODECS]
)
def test_a_copy_has_the_same_offsets_and_every_byte_after_the_batch_headers(
    pair: Pair, tmp_path: Path, codec: str
) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    for _ in range(3):
        # Only full batches are sent, and at the end what is left: tiny ones would be merged.
        produce(pair.east, topic, 700, compression_type=codec, batch_num_messages="100", linger_ms="10000")
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    source, copy = log_file(pair.east, f"{topic}-0"), log_file(pair.west, f"{topic}-0")
    assert payloads(source.read_bytes()) == payloads(copy.read_bytes())
    assert len(payloads(copy.read_bytes())) >= 20, "many batches, or the test shows little"
    there, here = dumped(pair.east, f"{topic}-0"), dumped(pair.west, f"{topic}-0")
    assert len([line for line in here if line.startswith("| offset")]) == 2_100
    assert there == here
    assert read_all(pair.east, topic) == read_all(pair.west, topic)
    assert read_all_aiokafka(pair.east, topic) == read_all_aiokafka(pair.west, topic)


def test_tiny_batches_are_merged_from_the_beginning_of_a_copy_on(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, retention_ms="-1")
    produce(pair.east, topic, 5_000, batch_num_messages="1", linger_ms="0")
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    there, here = (payloads(log_file(cluster, f"{topic}-0").read_bytes()) for cluster in (pair.east, pair.west))
    assert len(there) == 5_000
    assert len(here) < 500, "the leader of a new log knows nothing of us: the first batch goes alone, and only that"
    assert read_all(pair.west, topic) == read_all(pair.east, topic)


def test_an_index_too_small_for_any_record_is_the_sources_alone(pair: Pair, tmp_path: Path) -> None:
    """Whoever may change the source's topic would stop its mirror by it: a broker appends nothing to such a segment."""
    topic = new_topic(pair.east, retention_ms="-1")
    for _ in range(20):
        produce(pair.east, topic, 50)
    with as_admin(pair.east) as east:
        alter_topic(east, topic, {"segment.index.bytes": "4", "segment.ms": "1"})
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    with as_admin(pair.west) as west:
        assert "segment.index.bytes" not in describe_configs(west, [topic])[topic].overrides


def test_many_partitions_and_records_that_arrive_while_copying(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east, partitions=6)
    mirrored = new_mirror(pair, tmp_path, topic)
    for round_ in range(3):
        for partition in range(6):
            count, codec = 50 * (round_ + partition), CODECS[round_ + 1]
            produce(pair.east, topic, count, partition=partition, compression_type=codec)
        mirrored.copy()
    assert len(read_all(pair.west, topic)) == 50 * (0 + 15 + 6 + 15 + 12 + 15)
    assert read_all(pair.east, topic) == read_all(pair.west, topic)


def test_copying_again_copies_nothing(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 500)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    again = replicate(mirrored.link)
    assert (again.records, again.caught_up) == (0, True)
    assert len(read_all(pair.west, topic)) == 500


def one_bad(mirrored: Mirrored, bad: str, good: str) -> str:
    """Replicate; exactly the bad topic's partition 0 is FAILED, the good one is equal. Returns the recorded reason."""
    summary = replicate(mirrored.link)
    assert set(summary.failed) == {Partition(bad, 0)}
    assert read_all(mirrored.pair.east, good) == read_all(mirrored.pair.west, good)
    status = mirrored.statuses[Partition(bad, 0)]
    assert status.state is PartitionState.FAILED
    assert mirrored.statuses[Partition(good, 0)].state is PartitionState.MIRRORING
    assert status.reason is not None
    return status.reason


@pytest.fixture
def good_and_bad(pair: Pair, tmp_path: Path) -> tuple[Mirrored, str, str]:
    good, bad = new_topic(pair.east), new_topic(pair.east)
    for topic in (good, bad):
        produce(pair.east, topic, 300)
    mirrored = new_mirror(pair, tmp_path, good, bad)
    mirrored.copy()
    return mirrored, good, bad


def test_a_foreign_record_at_rest_fails_exactly_that_partition_at_its_offset(
    pair: Pair, good_and_bad: tuple[Mirrored, str, str]
) -> None:
    mirrored, good, bad = good_and_bad
    produce(pair.west, bad, 1)
    for topic in (good, bad):
        produce(pair.east, topic, 40)
    reason = one_bad(mirrored, bad, good)
    assert "cluster west" in reason
    assert "offset 300 was not written by this mirror" in reason
    assert len(read_all(pair.west, bad)) == 301, "nothing was added behind the foreign record"


def test_a_foreign_record_while_copying_fails_exactly_that_partition_at_its_offset(
    pair: Pair, good_and_bad: tuple[Mirrored, str, str]
) -> None:
    mirrored, good, bad = good_and_bad
    stop = threading.Event()
    copying = Replication(
        mirrored.link, LocalRunner, ReplicationOptions(epoch_s=600), stop=stop, report_line=lambda line: None
    )
    with beside(copying.run, stop.set, timeout_s=TIMEOUT_S):
        produce(pair.east, bad, 10)
        wait_until(lambda: len(read_all(pair.west, bad)) == 310, timeout_s=TIMEOUT_S, why="the copier is at work")
        produce(pair.west, bad, 1)
        produce(pair.east, good, 10)
        produce(pair.east, bad, 10, linger_ms="1000")  # in one batch: what came behind its first part would not be sent
        wait_until(lambda: len(read_all(pair.west, bad)) == 321, timeout_s=TIMEOUT_S, why="a shifted batch landed")
        produce(pair.east, bad, 10)
        wait_until(lambda: len(read_all(pair.west, good)) == 310, timeout_s=TIMEOUT_S, why="the good one goes on")
    # The epoch was cancelled, so its findings were not recorded; the next look finds the same.
    reason = one_bad(mirrored, bad, good)
    assert "offset 310 was not written by this mirror" in reason
    assert len(read_all(pair.west, bad)) == 321, "no more was sent after the shift was seen"


def test_the_sources_log_start_is_followed(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    produce(pair.east, topic, 100)
    mirrored = new_mirror(pair, tmp_path, topic)
    mirrored.copy()
    with as_admin(pair.east) as client:
        delete_records(client, {Partition(topic, 0): Offset(30)})
    mirrored.copy()
    with ClusterClient(mirrored.link.destination) as client:
        assert list_offsets(client, [Partition(topic, 0)], OffsetPoint.START) == {Partition(topic, 0): 30}
    assert read_all(pair.east, topic) == read_all(pair.west, topic)


def test_a_corrupt_source_batch_stops_its_partition_and_is_not_laundered(
    pair: Pair, good_and_bad: tuple[Mirrored, str, str]
) -> None:
    mirrored, good, bad = good_and_bad
    produce(pair.east, bad, 1)
    log = log_file(pair.east, f"{bad}-0")
    data = log.read_bytes()
    [*_, (header, batch)] = list(split_batches(memoryview(bytearray(data))))
    assert header.base_offset == 300
    start = len(data) - len(batch)
    with log.open("r+b") as file:  # in the page cache that the broker reads from, behind its back
        file.seek(start + HEADER_SIZE + 10)
        file.write(struct.pack("B", data[start + HEADER_SIZE + 10] ^ 0xFF))
    reason = one_bad(mirrored, bad, good)
    assert "batch at offset 300 is corrupt" in reason
    assert len(read_all(pair.west, bad)) == 300


def test_a_new_topic_and_new_partitions_are_taken_up_while_running(pair: Pair, tmp_path: Path) -> None:
    first = new_topic(pair.east)
    prefix = first + "-more-"
    mirrored = new_mirror(pair, tmp_path, first, prefix + ".*")
    stop = threading.Event()
    copying = Replication(
        mirrored.link, LocalRunner, ReplicationOptions(epoch_s=3), stop=stop, report_line=lambda line: None
    )
    with beside(copying.run, stop.set, timeout_s=TIMEOUT_S):
        produce(pair.east, first, 10)
        wait_until(lambda: Partition(first, 0) in mirrored.statuses, timeout_s=TIMEOUT_S, why="first plan")
        later = new_topic(pair.east, prefix=prefix)
        produce(pair.east, later, 15)
        admin = admin_client(pair.east)  # kept: collected with a future pending, it would abandon the request
        admin.create_partitions([NewPartitions(first, 3)])[first].result(TIMEOUT_S)
        wait_until(
            lambda: {Partition(first, 2), Partition(later, 0)} <= set(mirrored.statuses),
            timeout_s=TIMEOUT_S,
            why="the next plan finds the new topic and the new partitions",
        )
        produce(pair.east, first, 20, partition=2)
        wait_until(
            lambda: (len(read_all(pair.west, first)), len(read_all(pair.west, later))) == (30, 15),
            timeout_s=TIMEOUT_S,
            why="both are copied",
        )
    assert read_all(pair.east, first) == read_all(pair.west, first)

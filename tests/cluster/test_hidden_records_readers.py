"""What consumers get of a copy whose gaps are hidden records: wherever they begin, and after a cleaner's work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, TopicPartition

from mirror_core.copy.batch_builder import MAX_HIDDEN_RECORDS
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.produce_link import ProduceBatch, ProduceLink
from mirror_core.kafka.topics import alter_configs
from mirror_core.model.names import Partition
from mirror_core.wire.batch import readdress
from mirror_core.wire.hidden_records import build_hidden_batch
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support import log_shapes
from tests.support.cluster_admin import as_admin, broker_setting, tool_properties
from tests.support.gap_assignments import client_connection
from tests.support.gap_logs import assert_equal, offsets_for, transaction, transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, new_topic, produce, read_all, read_all_aiokafka
from tests.support.managed_service import managed
from tests.support.mirrored_topics import new_mirror
from tests.support.topic_equality import assert_parity

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def hosted(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with managed(pair, tmp_path_factory.mktemp("hosted")) as made:
        yield made


def gappy(cluster: SandboxCluster) -> str:
    """A topic of one partition: records, and gaps of one offset to some dozens, one of them at the end."""
    topic = new_topic(cluster)
    one, two = transactional(cluster), transactional(cluster, compression_type="zstd")
    for turn in range(4):
        transaction(one, topic, 2 + turn, commit=turn != 1)
        produce(cluster, topic, 3)
        transaction(two, topic, 5 * turn + 1, commit=turn % 2 == 0)
    return topic


def at_and_after(records: list[Record], offset: int) -> list[int]:
    return [record.offset for record in records if record.offset >= offset]


def test_every_consumer_begins_anywhere_and_sees_what_the_source_shows(hosted: Pair, tmp_path: Path) -> None:
    topic = gappy(hosted.east)
    new_mirror(hosted, tmp_path, topic).copy()
    assert_equal(hosted, topic)
    wanted, end = read_all(hosted.east, topic), log_end(hosted.west, topic)
    everywhere = {offset: at_and_after(wanted, offset) for offset in range(end + 1)}
    assert from_each(hosted.west, topic, "read_committed", end) == everywhere
    assert from_each(hosted.west, topic, "read_uncommitted", end) == everywhere
    assert asyncio.run(aiokafka_from_each(hosted.west, topic, end)) == everywhere
    inside = next(o for o in range(1, end) if everywhere[o - 1] == everywhere[o] == everywhere[o + 1])
    assert java_from(hosted.west, topic, inside, tmp_path) == everywhere[inside]


def from_each(cluster: SandboxCluster, topic: str, isolation: str, end: int) -> dict[int, list[int]]:
    """Offsets that librdkafka's consumer hands out, by the offset that it began at."""
    settings = {**cluster.client_config("admin"), "group.id": "none", "isolation.level": isolation}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 10, "enable.partition.eof": True})
    found: dict[int, list[int]] = {}
    try:
        for offset in range(end + 1):
            consumer.assign([TopicPartition(topic, 0, offset)])
            found[offset] = []
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{topic}: neither a record nor the end, from offset {offset}"
                error, position = message.error(), message.offset()
                if error is None and position is not None:
                    found[offset].append(position)
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    break
        return found
    finally:
        consumer.close()


async def aiokafka_from_each(cluster: SandboxCluster, topic: str, end: int) -> dict[int, list[int]]:
    config = cluster.client_config("admin")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap,
        security_protocol=config["security.protocol"],
        sasl_mechanism=config["sasl.mechanism"],
        sasl_plain_username="admin",
        sasl_plain_password=config["sasl.password"],
        enable_auto_commit=False,
        fetch_max_wait_ms=10,
    )
    partition = AioPartition(topic, 0)
    found: dict[int, list[int]] = {}
    try:
        await consumer.start()
        consumer.assign([partition])
        for offset in range(end + 1):
            consumer.seek(partition, offset)
            found[offset] = []
            while await consumer.position(partition) < end:
                got = await consumer.getmany(partition, timeout_ms=200)
                found[offset] += [message.offset for message in got.get(partition, [])]
        return found
    finally:
        await consumer.stop()


def java_from(cluster: SandboxCluster, topic: str, offset: int, folder: Path) -> list[int]:
    """Offsets that Kafka's console consumer prints, until nothing has come for some seconds."""
    until_s = 15  # a new JVM's first answer is among it
    done = cluster.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap, "--command-config", str(tool_properties(cluster, folder))),
        *("--topic", topic, "--partition", "0", "--offset", str(offset), "--timeout-ms", f"{until_s}000"),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false"),
    )
    assert "TimeoutException" in done.stderr, done.stderr
    return [int(line.split("Offset:")[1].split()[0]) for line in done.stdout.splitlines() if "Offset:" in line]


def log_end(cluster: SandboxCluster, topic: str) -> int:
    partition = Partition(topic, 0)
    with as_admin(cluster) as client:
        return list_offsets(client, [partition], OffsetPoint.LOG_END)[partition]


def test_lookups_by_time_find_what_the_source_has(hosted: Pair, tmp_path: Path) -> None:
    """Of old records in many segments: a time of today in one of them would hide all that come behind it."""
    topic = new_topic(hosted.east, retention_ms="-1", segment_ms=str(log_shapes.HOUR_MS))
    producer = transactional(hosted.east)
    times = [log_shapes.T2020 + number * log_shapes.HOUR_MS // 3 for number in range(12)]
    for number, time_ms in enumerate(times):
        producer.begin_transaction()
        producer.produce(topic, key="k", value=f"{number}", timestamp=time_ms)
        if number % 4 == 3:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    mirrored = new_mirror(hosted, tmp_path, topic)
    mirrored.copy()
    assert_equal(hosted, topic, records=9)
    assert len(segments(hosted.west, topic)) > 2
    records = read_all(hosted.east, topic)
    asked = sorted({time_ms + step for time_ms in times for step in (-1, 0, 1)})
    first = {time_ms: next((r.offset for r in records if r.timestamp_ms >= time_ms), None) for time_ms in asked}
    assert offsets_for(hosted.west, topic, asked) == first


def segments(cluster: SandboxCluster, topic: str) -> list[Path]:
    return sorted((cluster.log_dir() / f"{topic}-0").glob("*.log"))


@pytest.mark.slow
def test_the_cleaner_takes_hidden_records_away_and_nothing_else(hosted: Pair, tmp_path: Path) -> None:
    """As after the promotion of a topic that is compacted."""
    topic = gappy(hosted.east)
    produce(hosted.east, topic, 30, compression_type="zstd")
    transaction(transactional(hosted.east), topic, 40, commit=False)
    new_mirror(hosted, tmp_path, topic).copy()
    copied = read_all(hosted.east, topic)
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    with as_admin(hosted.west) as client, broker_setting(hosted.west, "log.cleaner.backoff.ms", "100"):
        alter_configs(client, {topic: compact})
        added = produce(hosted.west, topic, 6)  # rolls the segment that holds the copy
        log_shapes.await_cleaner(hosted.west, {Partition(topic, 0): added[0].offset})
    newest = {record.key: record for record in copied if record.key is not None}
    kept = sorted(newest.values(), key=lambda record: record.offset) + added
    for committed in (True, False):
        assert read_all(hosted.west, topic, committed=committed) == kept
    assert read_all_aiokafka(hosted.west, topic) == kept
    end = log_end(hosted.west, topic)
    everywhere = {offset: at_and_after(kept, offset) for offset in range(end + 1)}
    assert from_each(hosted.west, topic, "read_committed", end) == everywhere


@pytest.mark.slow
def test_a_gap_wider_than_any_answer_is_passed_over(hosted: Pair, tmp_path: Path) -> None:
    topic, width = new_topic(hosted.east), 1_000_000
    partition = Partition(topic, 0)
    produce(hosted.east, topic, 3)
    with as_admin(hosted.east) as client, client_connection(client, partition) as connection:
        append_hidden(connection, topic, width)
    produce(hosted.east, topic, 3)
    mirrored = new_mirror(hosted, tmp_path, topic)
    mirrored.copy()
    assert_equal(hosted, topic, records=6)
    assert [r.offset for r in read_all(hosted.west, topic)] == [0, 1, 2, *range(width + 3, width + 6)]
    assert_parity(mirrored)


def append_hidden(connection: Connection, topic: str, count: int) -> None:
    """As the copy of a mirror would be, were it to be mirrored on: a source with hidden records."""
    link = ProduceLink[str](connection)
    for base in range(0, count, MAX_HIDDEN_RECORDS):
        batch = memoryview(build_hidden_batch(min(MAX_HIDDEN_RECORDS, count - base), -1))
        readdress(batch, 1 << 62, 0, base)
        link.send([ProduceBatch(topic, 0, batch, "hidden")])
        assert [row.error for _, row in link.read_responses()] == [0]

"""Topics that are equal on two clusters, or differ in one seeded way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal, load_config
from mirror_core.kafka.connection import CLIENT_ID, Connection
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import ParityRange
from mirror_core.wire import produce
from mirror_core.wire.batch import HEADER, HEADER_SIZE, BatchHeader, readdress, split_batches
from mirror_core.wire.records import Codec
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic
from tests.support.waiting import wait_until

START_MS = 1_790_000_000_001


@dataclass(frozen=True, slots=True)
class Content:
    """What to send; `aborted` in a transaction that is aborted, which takes one offset more for its marker."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    aborted: bool = False


def content(count: int) -> list[Content]:
    """Records with null keys and values, headers, and bytes that are no UTF-8."""
    return [
        Content(
            key=None if n % 7 == 6 else b"\xffkey-%d" % n,
            value=None if n % 11 == 10 else b"\xfe value %d" % n,
            timestamp_ms=START_MS + 2 * n,
            headers=(("n", b"%d" % n), ("null", None)),
        )
        for n in range(count)
    ]


def twin_topics(pair: Pair, partitions: int = 1, **config: str) -> str:
    """A new topic of the same name on both clusters, which keeps old records."""
    topic = new_topic(pair.east, partitions, retention_ms="-1", **config)
    admin = admin_client(pair.west)
    futures = admin.create_topics(
        [NewTopic(topic, partitions, config={"retention.ms": "-1"})], request_timeout=TIMEOUT_S
    )
    futures[topic].result(TIMEOUT_S)
    wait_until(lambda: _led(pair.west, topic, partitions), timeout_s=TIMEOUT_S, why=f"leaders of {topic} on west")
    return topic


def _led(cluster: SandboxCluster, topic: str, partitions: int) -> bool:
    seen = admin_client(cluster).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return len(seen) == partitions and all(partition.leader >= 0 for partition in seen.values())


def send(cluster: SandboxCluster, topic: str, records: Sequence[Content], partition: int = 0, **config: str) -> None:
    """Send in order, and wait until all are acknowledged. In one batch, if nothing else is said: also when the loop is
    held up for a moment (a flush waits for no linger)."""
    settings = {"linger.ms": "1000", **{key.replace("_", "."): value for key, value in config.items()}}
    producer = Producer({**cluster.client_config("admin"), "enable.idempotence": True, **settings})
    for number, record in enumerate(records):
        if record.aborted:
            assert producer.flush(TIMEOUT_S) == 0
            _send_aborted(cluster, topic, record, partition, f"{topic}-{partition}-{number}")
        else:
            _send(producer, topic, record, partition)
    assert producer.flush(TIMEOUT_S) == 0


def _send(producer: Producer, topic: str, record: Content, partition: int) -> None:
    producer.produce(
        topic,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        timestamp=record.timestamp_ms,
        partition=partition,
    )


def _send_aborted(cluster: SandboxCluster, topic: str, record: Content, partition: int, name: str) -> None:
    producer = Producer({**cluster.client_config("admin"), "transactional.id": f"tx-{name}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    _send(producer, topic, record, partition)
    assert producer.flush(TIMEOUT_S) == 0
    before = _log_end(cluster, topic, partition)
    producer.abort_transaction(TIMEOUT_S)
    # The coordinator answers before its marker is in the partition, which the next record could overtake.
    wait_until(
        lambda: _log_end(cluster, topic, partition) > before, timeout_s=TIMEOUT_S, why=f"abort marker in {topic}"
    )


def _log_end(cluster: SandboxCluster, topic: str, partition: int) -> int:
    consumer = Consumer({**cluster.client_config("admin"), "group.id": "log-end"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT_S)[1]
    finally:
        consumer.close()


def untouched(batch: memoryview) -> None:
    """What a mirror does to the records of a batch."""


def copy_bytes(
    pair: Pair, topic: str, end: int, partition: int = 0, *, alter: Callable[[memoryview], None] = untouched
) -> None:
    """Copy raw batches from east to west as a mirror does: only the producer's fields change, and what `alter` does."""
    config = load_config(pair.config_path)
    where = Partition(topic, partition)
    west = config.cluster("west")
    sequence = 0
    with LogReader(config.cluster("east")) as reader, ClusterClient(west) as client:
        leader = next(iter(client.leaders([where])))
        host, port = client.metadata([topic]).brokers[leader]
        with Connection(west, Principal.DATA, host, port) as connection:
            for header, batch in reader.batches(where, Offset(0), Offset(end)):
                alter(batch)
                readdress(batch, 2**62 + 5, 0, sequence)
                correlation = connection.next_id()
                connection.send(
                    produce.encode_request([(topic, partition, batch)], correlation, CLIENT_ID, timeout_ms=10_000)
                )
                frame = connection.receive()
                (answer,) = produce.decode_response(memoryview(frame)[4:])
                assert (answer.error, answer.base_offset) == (0, header.base_offset), answer
                sequence += header.record_count


def batch_of(body: bytes, count: int, codec: Codec) -> bytearray:
    """Of offset deltas from 0 on, with these bytes as its records, whatever they are."""
    header = BatchHeader(
        0, HEADER_SIZE - 12 + len(body), -1, 2, 0, codec, count - 1, START_MS, START_MS, -1, -1, -1, count
    )
    return bytearray(HEADER.pack(*header) + body)


def append_batches(
    pair: Pair,
    cluster: str,
    topic: str,
    batches: Iterable[bytearray],
    *,
    producer_id: int = 2**62 + 7,
    log_end: int = 0,
) -> None:
    """To partition 0 of a topic without gaps that nobody else writes: bytes as they are, as no client writes them."""
    config = load_config(pair.config_path).cluster(cluster)
    with ClusterClient(config) as client:
        leader = next(iter(client.leaders([Partition(topic, 0)])))
        host, port = client.metadata([topic]).brokers[leader]
    with Connection(config, Principal.DATA, host, port) as connection:
        sequence = log_end
        for batch in batches:
            view = memoryview(batch)
            readdress(view, producer_id, 0, sequence)
            request = [(topic, 0, view)]
            connection.send(produce.encode_request(request, connection.next_id(), CLIENT_ID, timeout_ms=10_000))
            (answer,) = produce.decode_response(memoryview(connection.receive())[4:])
            assert (answer.error, answer.base_offset) == (0, sequence), answer
            sequence += next(split_batches(view))[0].record_count


def whole(topic: str, end: int, start: int = 0, partition: int = 0) -> ParityRange:
    return ParityRange(partition=Partition(topic, partition), start=Offset(start), end=Offset(end))

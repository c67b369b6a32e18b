"""A source with every shape of log that Kafka has, made by real clients and real cleaner runs.

Records are of 2020 where nothing else is said, as in an old topic. All topics of one set share a prefix.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mirror_core.kafka.topics import delete_records
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin, broker_setting, hang
from tests.support.kafka_clients import TIMEOUT_S, Headers, new_topic
from tests.support.waiting import wait_until

T2020: Final = 1_577_836_800_123
HOUR_MS: Final = 3_600_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
FOREVER: Final = str(2**63 - 1)
BEGINNING_HOLE: Final = 6_000
FAR_START: Final = 250_003
"""Where the topic `late` begins: inside a batch, far from 0."""
LARGE_BYTES: Final = 9 << 20
OPEN_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A record to be produced."""

    key: bytes | None = None
    value: bytes | None = b""
    headers: Headers | None = None
    timestamp_ms: int = T2020


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """One set: the topic of each shape by its name, and the transactional producer that was left open."""

    cluster: SandboxCluster
    prefix: str
    topics: Mapping[str, str]
    open_id: str

    def end_the_open_transaction(self) -> None:
        """Abort it, as a restarted application does: its marker becomes part of the log."""
        _transactional(self.cluster, self.open_id)

    def append(self) -> None:
        """Some more records at the end of each topic."""
        producer = new_producer(self.cluster, compression_type="zstd")
        for topic in self.topics.values():
            send(producer, topic, _keyed("later", range(20), 0))


def build(cluster: SandboxCluster) -> Shapes:
    """Produce everything, and wait until the cleaner has been through what is compacted."""
    prefix = f"shape-{secrets.token_hex(4)}-"
    open_id = f"{prefix}open"
    topics: dict[str, str] = {}

    def topic(name: str, partitions: int = 1, /, **config: str) -> str:
        old = {"retention_ms": "-1", "message_timestamp_after_max_ms": FOREVER, "segment_ms": str(HOUR_MS)}
        topics[name] = new_topic(cluster, partitions, f"{prefix}{name}-", **{**old, **config})
        return topics[name]

    batching = {codec: new_producer(cluster, compression_type=codec, linger_ms="1000") for codec in CODECS}
    compact = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "delete_retention_ms": str(24 * HOUR_MS),
    }
    with broker_setting(cluster, "log.cleaner.backoff.ms", "100"):
        dirty = {
            **compacted(topic("compacted", len(CODECS), **compact), batching),
            **compacted_transactions(cluster, topic("compacted_transactions", **compact)),
        }
        transactions(cluster, topic("transactions", 2))
        transactions_of_aiokafka(cluster, topic("transactions_aiokafka"))
        open_transaction(cluster, topic("open"), open_id)
        hanging(cluster, topic("hanging"))
        append_time(topic("append_time", message_timestamp_type="LogAppendTime"), batching)
        late(cluster, topic("late"))
        emptied(cluster, topic("emptied"))
        topic("empty")
        timestamps(topic("timestamps"), batching)
        oddities(topic("oddities"), batching)
        large(cluster, topic("large", max_message_bytes=str(LARGE_BYTES + (1 << 20))))
        tiny(cluster, topic("tiny"))
        await_cleaner(cluster, dirty)
        await_cleaner(cluster, cleaned_again(cluster, topics["compacted_transactions"]))
    return Shapes(cluster=cluster, prefix=prefix, topics=topics, open_id=open_id)


def compacted(topic: str, batching: Mapping[str, Producer]) -> dict[Partition, int]:
    """A partition for each codec; what the cleaner leaves of it is the same in all.

    It leaves a hole of thousands at the beginning, holes inside a batch and between batches, tombstones with a delete
    horizon, and of the first producer's last batch nothing but a header, which keeps its sequence numbers. Returns
    where the cleaner must get to.
    """
    for partition, codec in enumerate(CODECS):
        first, second = batching[codec], batching[CODECS[partition - 1]]
        send(first, topic, _keyed("same", [0] * BEGINNING_HOLE, 0), partition)
        send(first, topic, _keyed("k", range(200), 0), partition)
        for version in range(3):
            send(first, topic, _keyed("m", range(20), version), partition)
        send(second, topic, [Row(key=b"k%d" % number, value=None) for number in range(190, 200)], partition)
        send(second, topic, _keyed("m", range(20), 3), partition)
        send(second, topic, _keyed("k", range(0, 190, 3), 1), partition)
        send(second, topic, _keyed("same", [0], 1), partition)
        send(second, topic, [_roller(T2020)], partition)
    return {Partition(topic, index): BEGINNING_HOLE + 355 for index in range(len(CODECS))}


def compacted_transactions(cluster: SandboxCluster, topic: str) -> dict[Partition, int]:
    """Transactions whose records the cleaner took, wholly or in part; markers stay, and keep their offsets."""
    producer = _transactional(cluster, f"{topic}-id", compression_type="lz4", linger_ms="1000")
    now = int(time.time() * 1000)  # as the markers have it: else they would close a segment each
    for number in range(12):
        producer.begin_transaction()
        send(producer, topic, [replace(r, timestamp_ms=now) for r in _keyed("k", range(number, number + 30), number)])
        if number % 3 == 1:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
    send(new_producer(cluster), topic, [_roller(now)])
    return {Partition(topic, 0): 12 * 31}


def cleaned_again(cluster: SandboxCluster, topic: str) -> dict[Partition, int]:
    """Another run over the transactions: only now markers without records get their delete horizon."""
    send(new_producer(cluster), topic, [_roller(int(time.time() * 1000) + 2 * HOUR_MS)])
    return {Partition(topic, 0): 12 * 31 + 1}


def await_cleaner(cluster: SandboxCluster, goals: Mapping[Partition, int]) -> None:
    why = f"{cluster.name}: the cleaner gets to {dict(goals)}"
    wait_until(lambda: goals.items() <= _cleaned(cluster).items(), timeout_s=TIMEOUT_S, why=why)


def _cleaned(cluster: SandboxCluster) -> dict[Partition, int]:
    """How far the cleaner has been through each log: its own checkpoint, written after the segments were replaced."""
    path = cluster.log_dir() / "cleaner-offset-checkpoint"
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()[2:]] if path.exists() else []
    return {Partition(topic, int(index)): int(offset) for topic, index, offset in rows}


def transactions(cluster: SandboxCluster, topic: str) -> None:
    """Three transactional producers and a plain one, interleaved over two partitions; the last transaction aborts."""
    producers = [
        _transactional(cluster, f"{topic}-{number}", compression_type=codec)
        for number, codec in enumerate(("none", "zstd", "gzip"))
    ]
    plain = new_producer(cluster, compression_type="snappy")
    for round_ in range(8):
        for producer in producers:
            producer.begin_transaction()
        for part in range(3):
            for number, producer in enumerate(producers):
                # One record, or hundreds: a transaction may begin and end inside one answer, or fill several.
                rows = _keyed(f"t{number}-{round_}-{part}", range(1 + 40 * (round_ % 3) * part), round_)
                send(producer, topic, rows, (round_ + part + number) % 2)
            send(plain, topic, _keyed(f"p-{round_}-{part}", range(3), round_), part % 2)
        for number, producer in enumerate(producers):
            if (round_ + number) % 3 == 0:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)


def transactions_of_aiokafka(cluster: SandboxCluster, topic: str) -> None:
    """Another family's producer: it ends a transaction in another way, and compresses by other libraries."""
    asyncio.run(_aiokafka_transactions(cluster, topic))


async def _aiokafka_transactions(cluster: SandboxCluster, topic: str) -> None:
    config = cluster.client_config("admin")
    producer = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        security_protocol=config["security.protocol"],
        sasl_mechanism=config["sasl.mechanism"],
        sasl_plain_username=config["sasl.username"],
        sasl_plain_password=config["sasl.password"],
        transactional_id=f"{topic}-aiokafka",
        compression_type="lz4",
        linger_ms=20,
    )
    try:
        await producer.start()
        for number in range(6):
            await producer.begin_transaction()
            rows = _keyed("a", range(20 * number + 1), number)
            sent = [await producer.send(topic, row.value, row.key, 0, row.timestamp_ms) for row in rows]
            await asyncio.gather(*sent)
            if number % 2:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    finally:
        await producer.stop()


def open_transaction(cluster: SandboxCluster, topic: str, open_id: str) -> None:
    """Ends with a transaction that nobody has ended: readers of committed records stop before it."""
    send(new_producer(cluster), topic, _keyed("before", range(50), 0))
    producer = _transactional(cluster, open_id)
    producer.begin_transaction()
    send(producer, topic, _keyed("open", range(10), 0))
    send(new_producer(cluster), topic, _keyed("behind", range(20), 0))


def hanging(cluster: SandboxCluster, topic: str) -> None:
    """The same for ever: no coordinator knows of this transaction, so nobody will end it."""
    send(new_producer(cluster), topic, _keyed("before", range(50), 0))
    hang(cluster, Partition(topic, 0))
    send(new_producer(cluster), topic, _keyed("behind", range(20), 0))


def append_time(topic: str, batching: Mapping[str, Producer]) -> None:
    for codec in CODECS:
        send(batching[codec], topic, _keyed(codec, range(100), 0))


def late(cluster: SandboxCluster, topic: str) -> None:
    """A log that begins far from 0, inside a batch."""
    many = new_producer(cluster, linger_ms="1000", batch_num_messages="100000", compression_type="zstd")
    send(many, topic, (Row() for _ in range(FAR_START - 3)))
    send(new_producer(cluster, linger_ms="1000"), topic, _keyed("k", range(500), 0))
    with as_admin(cluster) as client:
        delete_records(client, {Partition(topic, 0): Offset(FAR_START)})


def emptied(cluster: SandboxCluster, topic: str) -> None:
    """A log that has an end and no record."""
    send(new_producer(cluster), topic, _keyed("k", range(700), 0))
    with as_admin(cluster) as client:
        delete_records(client, {Partition(topic, 0): Offset(700)})


def timestamps(topic: str, batching: Mapping[str, Producer]) -> None:
    """None at all, absurd ones, and backwards: side by side in a batch, and alone."""
    stamps = (-1, T2020, 2**62, 1, T2020 - 5, -1, 4_102_444_800_001)
    for codec in ("none", "zstd"):
        producer = batching[codec]
        send(producer, topic, [Row(value=b"%d" % stamp, timestamp_ms=stamp) for stamp in stamps])
        for stamp in stamps:
            send(producer, topic, [Row(value=b"alone", timestamp_ms=stamp)])


def oddities(topic: str, batching: Mapping[str, Producer]) -> None:
    """Null and empty are different things, for keys, values and headers; and not everything is text."""
    contents = (None, b"", b"\xff\x00\xfe", b"text")
    headers: Sequence[Headers] = (
        [],
        [("", None)],
        [("", b""), ("twice", b"1"), ("twice", b"2")],
        [("não-ASCII-名", b"\xff\xfe\x00"), ("n", b"x" * 300)],
    )
    rows = [Row(key=k, value=v, headers=h) for k in contents for v in contents for h in headers]
    for codec in CODECS:
        send(batching[codec], topic, rows)


def large(cluster: SandboxCluster, topic: str) -> None:
    """Batches near the limit that brokers have by default, and one record that is larger than any default fetch."""
    producer = new_producer(cluster, message_max_bytes=str(LARGE_BYTES + (1 << 20)), linger_ms="1000")
    send(producer, topic, [Row(value=secrets.token_bytes(10_000)) for _ in range(300)])
    send(producer, topic, [Row(key=b"large", value=secrets.token_bytes(LARGE_BYTES))])
    send(producer, topic, [Row(value=b"small")])


def tiny(cluster: SandboxCluster, topic: str) -> None:
    """A batch for each record."""
    producer = new_producer(cluster, linger_ms="0", batch_num_messages="1")
    send(producer, topic, _keyed("k", range(2_000), 0))


def many_partitions(cluster: SandboxCluster, partitions: int) -> str:
    """One record in each partition but the last. Not part of the set: only to make it takes seconds."""
    topic = new_topic(cluster, partitions, retention_ms="-1")
    producer = new_producer(cluster, linger_ms="50")
    for partition in range(partitions - 1):
        _enqueue(producer, topic, [Row(value=b"%d" % partition)], partition)
    _flush(producer, topic)
    return topic


def send(producer: Producer, topic: str, rows: Iterable[Row], partition: int = 0) -> None:
    """Produce in order; returns when all is acknowledged."""
    _enqueue(producer, topic, rows, partition)
    _flush(producer, topic)


def _enqueue(producer: Producer, topic: str, rows: Iterable[Row], partition: int) -> None:
    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            raise KafkaException(error)

    for row in rows:
        # An empty list of headers means none.
        producer.produce(
            topic,
            key=row.key,
            value=row.value,
            headers=[*row.headers] if row.headers else None,
            partition=partition,
            timestamp=row.timestamp_ms,
            on_delivery=delivered,
        )


def _flush(producer: Producer, topic: str) -> None:
    assert producer.flush(TIMEOUT_S) == 0, f"{topic}: not everything was acknowledged"


def new_producer(cluster: SandboxCluster, **config: str) -> Producer:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    queue = {"queue.buffering.max.messages": 1_000_000, "sticky.partitioning.linger.ms": 0}
    return Producer({**cluster.client_config("admin"), "enable.idempotence": True, **queue, **settings})


def _transactional(cluster: SandboxCluster, name: str, **config: str) -> Producer:
    producer = new_producer(cluster, transactional_id=name, transaction_timeout_ms=str(OPEN_S * 1000), **config)
    producer.init_transactions(TIMEOUT_S)
    return producer


def _keyed(name: str, numbers: Iterable[int], version: int) -> list[Row]:
    return [Row(key=f"{name}{n}".encode(), value=f"{name}{n} {version} ".encode() * 5) for n in numbers]


def _roller(after_ms: int) -> Row:
    """A record so late that the segment before it is closed: the cleaner leaves the open one alone."""
    return Row(key=b"roller", value=b"", timestamp_ms=after_ms + 2 * HOUR_MS)

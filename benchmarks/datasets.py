"""What is copied: topics of different shapes, loaded the same way each time, and described as they lie in the log."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from mirror_core.wire.batch import HEADER, HEADER_SIZE, LENGTH_PREFIX, BatchHeader
from mirrorbook_tools.sandbox.cluster import SandboxCluster

TIMEOUT_S: Final = 60.0
LOAD_TIMEOUT_S: Final = 900.0
VALUES: Final = 1000
"""Different values; also records that one partition gets in a row, so that its batches fill before a queue does."""
CHECKPOINT: Final = "cleaner-offset-checkpoint"
COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": str(64 << 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """How the source topic is filled. Values are half noise, so that codecs find about half to take away."""

    says: str
    partitions: int = 8
    value_bytes: int = 1024
    batch_bytes: int = 16 << 10
    """The producer's batch.size, which counts before compression."""
    codec: str = "none"
    compacted: bool = False
    """Every second record is replaced by later ones, and the cleaner has been through."""


SETS: Final = {
    "d1": DataSet(says="1 KiB records in 16 KiB batches"),
    "d2": DataSet(says="1 KiB records in 64 KiB batches, lz4", batch_bytes=64 << 10, codec="lz4"),
    "d3": DataSet(says="100 B records in 16 KiB batches", value_bytes=100),
    "d4": DataSet(says="1,000 thin partitions, 1 KiB records", partitions=1000),
    "d5": DataSet(says="compacted, half of the offsets without a record", compacted=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The source topic as it lies in the log."""

    offsets: int
    """Sum of the log ends; a faithful copy has the same."""
    records: int
    """What a consumer reads."""
    value_bytes: int
    log_bytes: int
    batches: int

    @property
    def gigabytes(self) -> float:
        """Of record values: what users of the topic would call its size."""
        return self.value_bytes / 1e9


def load(cluster: SandboxCluster, topic: str, data: DataSet, records: int) -> Loaded:
    """Create and fill the topic; raises SystemExit when the cluster doesn't take it."""
    admin = AdminClient({**cluster.client_config("admin")})
    config = {"retention.ms": "-1", **(COMPACTED if data.compacted else {})}
    admin.create_topics([NewTopic(topic, data.partitions, config=config)])[topic].result(TIMEOUT_S)
    _produce(cluster, topic, data, records_of(data, records))
    if data.compacted:
        _compact(cluster, admin, topic, data)
    batches, log_bytes, offsets = described(cluster.log_dir(), topic, data.partitions)
    held = _count(cluster, topic, data.partitions) if data.compacted else records
    return Loaded(
        offsets=offsets, records=held, value_bytes=held * data.value_bytes, log_bytes=log_bytes, batches=batches
    )


def records_of(data: DataSet, count: int) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Partition, key, value: the same every time."""
    dice = random.Random(1)
    half = data.value_bytes // 2
    values = [dice.randbytes(half) + bytes(data.value_bytes - half) for _ in range(VALUES)]
    run = max(1, min(VALUES, count // data.partitions))
    for number in range(count):
        key = None
        if data.compacted:
            key = b"again" if number % 2 else b"%d" % number
        yield number // run % data.partitions, key, values[number % VALUES]


def _produce(
    cluster: SandboxCluster, topic: str, data: DataSet, records: Iterator[tuple[int, bytes | None, bytes]]
) -> None:
    producer = Producer(
        {
            **cluster.client_config("admin"),
            "enable.idempotence": True,
            "linger.ms": 1000,
            "batch.size": data.batch_bytes,
            "compression.type": data.codec,
            "queue.buffering.max.messages": 200_000,
        }
    )
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))

    for partition, key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(LOAD_TIMEOUT_S) or failed:
        raise SystemExit(f"the data set was not loaded: {failed[:1] or 'not acknowledged in time'}")


def _compact(cluster: SandboxCluster, admin: AdminClient, topic: str, data: DataSet) -> None:
    """Have everything cleaned that is there now: the cleaner leaves the active segment alone, so a new one is begun."""
    ends = _ends(cluster.log_dir(), topic, data.partitions)
    # With segments this old, one more record begins a new one.
    _segment_age(admin, topic, AlterConfigOpType.SET, "1")
    _produce(cluster, topic, data, ((p, b"last", bytes(data.value_bytes)) for p in range(data.partitions)))
    _segment_age(admin, topic, AlterConfigOpType.DELETE, None)
    deadline = time.monotonic() + LOAD_TIMEOUT_S
    while any(cleaned < end for cleaned, end in zip(_cleaned(cluster, topic, data.partitions), ends, strict=True)):
        if time.monotonic() > deadline:
            raise SystemExit(f"the cleaner has not been through {topic} within {LOAD_TIMEOUT_S:g} s")
        time.sleep(0.5)


def _segment_age(admin: AdminClient, topic: str, operation: AlterConfigOpType, value: str | None) -> None:
    entry = ConfigEntry("segment.ms", value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    futures = admin.incremental_alter_configs([resource])
    for future in futures.values():
        future.result(TIMEOUT_S)


def _cleaned(cluster: SandboxCluster, topic: str, partitions: int) -> list[int]:
    """Per partition the first offset that the cleaner has not been through, from its checkpoint file."""
    path = cluster.log_dir() / CHECKPOINT
    lines = path.read_text(encoding="ascii").splitlines()[2:] if path.exists() else []
    found = {int(index): int(offset) for name, index, offset in map(str.split, lines) if name == topic}
    return [found.get(index, 0) for index in range(partitions)]


def _ends(log_dir: Path, topic: str, partitions: int) -> list[int]:
    """Log ends (next offsets), from the segments."""
    return [_walk(log_dir / f"{topic}-{index}")[2] for index in range(partitions)]


def described(log_dir: Path, topic: str, partitions: int) -> tuple[int, int, int]:
    """Batches, their bytes and the sum of log ends."""
    rows = [_walk(log_dir / f"{topic}-{index}") for index in range(partitions)]
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)


def _walk(folder: Path) -> tuple[int, int, int]:
    """Batches, their bytes and the log end of one partition, by its batch headers only."""
    batches = size = end = 0
    for segment in sorted(folder.glob("*.log")):
        with segment.open("rb") as log:
            while len(raw := log.read(HEADER_SIZE)) == HEADER_SIZE:
                header = BatchHeader._make(HEADER.unpack(raw))
                if not header.length:
                    break  # preallocated, not yet written
                batches, size, end = batches + 1, size + LENGTH_PREFIX + header.length, header.next_offset
                log.seek(header.length - (HEADER_SIZE - LENGTH_PREFIX), 1)
    return batches, size, end


def _count(cluster: SandboxCluster, topic: str, partitions: int) -> int:
    """Records that a consumer finds from the beginning to the end."""
    consumer = Consumer(
        {
            **cluster.client_config("admin"),
            "group.id": "bench-count",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        count, at_end = 0, set[int]()
        quiet_since = time.monotonic()
        while len(at_end) < partitions:
            for message in consumer.consume(10_000, timeout=0.5):
                quiet_since = time.monotonic()
                if message.error() is None:
                    count += 1
                else:  # the end of a partition
                    at_end.add(message.partition() or 0)
            if time.monotonic() - quiet_since > TIMEOUT_S:
                raise SystemExit(f"{topic}: nothing more to read within {TIMEOUT_S:g} s, but its end was not reached")
        return count
    finally:
        consumer.close()

"""Log truncation, shared by tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Producer

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from mirror_core.model.timing import now_ms
from mirror_core.wire.batch import BatchHeader, split_batches
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.gap_logs import transactional, write
from tests.support.kafka_clients import TIMEOUT_S, produce


def hundreds(cluster: SandboxCluster, topic: str, count: int) -> None:
    """Batches of 100 records, all by one producer, each of a later time: segments roll by how many times they hold."""
    producer = Producer({**cluster.client_config("admin"), "enable.idempotence": True, "linger.ms": 1000})
    began_ms = now_ms()
    for first in range(0, 100 * count, 100):
        for number in range(first, first + 100):
            at = began_ms + first // 100
            producer.produce(topic, key=b"%d" % number, value=b"%d" % number * 9, partition=0, timestamp=at)
        assert producer.flush(TIMEOUT_S) == 0, "not all was delivered"


def braided(cluster: SandboxCluster, topic: str) -> None:
    """0 to 49; a transaction 50 to 59 that ends at 70; another one 60 to 69 that ends at 81; 71 to 80 and 82 to 111."""
    one, other = transactional(cluster), transactional(cluster)
    produce(cluster, topic, 50)
    one.begin_transaction()
    write(one, topic, 10)
    other.begin_transaction()
    write(other, topic, 10)
    one.commit_transaction(TIMEOUT_S)
    produce(cluster, topic, 10)
    other.commit_transaction(TIMEOUT_S)
    produce(cluster, topic, 30)


def stored(folder: Path) -> list[BatchHeader]:
    """What lies there, in the order of offsets."""
    paths = sorted(folder.glob("*.log"))
    return [header for path in paths for header, _ in split_batches(memoryview(bytearray(path.read_bytes())))]


def ends(cluster: SandboxCluster, topics: Iterable[str], point: OffsetPoint = OffsetPoint.LOG_END) -> dict[str, int]:
    with as_admin(cluster) as client:
        found = list_offsets(client, [Partition(topic, 0) for topic in topics], point)
    return {partition.topic: int(offset) for partition, offset in found.items()}

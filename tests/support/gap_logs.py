"""Logs with gaps on a source cluster, made by other people's producers and the broker's own cleaner; and what a copy of
one must be equal in."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.data_errors import about_data
from tests.support.kafka_clients import TIMEOUT_S, Pair, read_all, read_all_aiokafka


def transactional(cluster: SandboxCluster, **config: str) -> Producer:
    """A producer with a transactional id of its own, ready to begin."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer(
        {
            **cluster.client_config("admin"),
            "transactional.id": f"txn-{secrets.token_hex(4)}",
            "linger.ms": 0,
            **settings,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, count: int, partitions: Iterable[int] = (0,)) -> None:
    """Records of a transaction that has begun, delivered but neither committed nor aborted."""
    for number in range(count):
        for partition in partitions:
            key = None if number % 5 == 4 else f"k{number}"
            producer.produce(
                topic, key=key, value=secrets.token_bytes(30), headers=[("h", b"\xff")], partition=partition
            )
    assert producer.flush(TIMEOUT_S) == 0, "not all was delivered"


def transaction(producer: Producer, topic: str, count: int, *, commit: bool, partitions: Iterable[int] = (0,)) -> None:
    producer.begin_transaction()
    write(producer, topic, count, partitions)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def bounds(cluster: SandboxCluster, topic: str) -> dict[Partition, tuple[int, int]]:
    """First offset and next offset to be written, of each partition."""
    with as_admin(cluster) as client:
        partitions = [Partition(topic, index) for index in client.metadata([topic]).topics[topic].partitions]
        starts, ends = (list_offsets(client, partitions, point) for point in (OffsetPoint.START, OffsetPoint.LOG_END))
    return {partition: (starts[partition], ends[partition]) for partition in partitions}


@about_data()
def assert_equal(pair: Pair, topic: str, *, records: int | None = None) -> None:
    """Both logs begin and end at the same offsets, and consumers of two families see the same in them; so many
    records, if said. A consumer of uncommitted records sees no record on the copy that the source does not have."""
    assert bounds(pair.west, topic) == bounds(pair.east, topic)
    there = read_all(pair.east, topic)
    assert read_all(pair.west, topic) == there
    assert read_all_aiokafka(pair.west, topic) == read_all_aiokafka(pair.east, topic)
    assert records is None or len(there) == records
    assert read_all(pair.west, topic, committed=False) == there, "a record was invented, or an aborted one copied"


def offsets_for(cluster: SandboxCluster, topic: str, times: list[int]) -> dict[int, int | None]:
    """The answers to lookups by time; None: nothing is so new."""
    consumer = Consumer({**cluster.client_config("admin"), "group.id": "none"})
    try:
        found = {}
        for time_ms in times:
            (answer,) = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=TIMEOUT_S)
            found[time_ms] = None if answer.offset == OFFSET_END else answer.offset
        return found
    finally:
        consumer.close()

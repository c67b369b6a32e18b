"""The canary: every broker of a cluster takes a write that all in-sync replicas confirm, and gives it back."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topics
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.run import Evidence

TOPIC: Final = "__mirrorbook_canary"
TIMEOUT_S: Final = 30.0
_QUIET: Final = {"log_level": 0, "error_cb": lambda error: None}  # errors reach us through the calls themselves


def run_canary(config: ClusterConfig, note: str) -> Evidence:
    """Write `note` to one partition led by each broker, acks=all, and read it back. Raises when any broker fails."""
    with ClusterClient(config) as client:
        partitions = _partition_per_broker(client)
    values = {p: f"{note} broker={broker}".encode() for broker, p in partitions.items()}
    started = time.monotonic()
    offsets = _write(config, values)
    written = time.monotonic()
    _read_back(config, values, offsets)
    return {
        "brokers": some(sorted(partitions)),
        "offsets": some(f"{TOPIC}-{p}={o}" for p, o in sorted(offsets.items())),
        "write_s": round(written - started, 3),
        "read_s": round(time.monotonic() - written, 3),
    }


def _partition_per_broker(client: ClusterClient) -> dict[int, int]:
    """Broker id to a partition of the canary topic that it leads; the topic is made anew when a broker has none."""
    brokers = client.brokers()
    for fresh in (False, True):
        if fresh:
            delete_topics(client, [TOPIC])
        topic = NewTopic(
            name=TOPIC,
            partitions=len(brokers),
            replication_factor=1,
            configs={"retention.ms": "86400000"},
            assignments=tuple((b,) for b in brokers),
        )
        create_topics(client, [topic])
        leaders = client.metadata([TOPIC]).topics[TOPIC].partitions
        led = {leader.broker: index for index, leader in leaders.items()}
        if set(brokers) <= set(led):
            return {b: led[b] for b in brokers}
    raise RemoteFault(f"cluster {client.name}: topic {TOPIC} has no partition on each of the brokers {brokers}")


def _write(config: ClusterConfig, values: dict[int, bytes]) -> dict[int, int]:
    offsets: dict[int, int] = {}
    problems: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            offsets[partition] = offset
        elif error is not None:
            problems.append(f"{TOPIC}-{partition}: {error.name()}")

    properties = {"enable.idempotence": True, "acks": "all", "delivery.timeout.ms": int(TIMEOUT_S * 1000)}
    producer = Producer({**config.properties(), **_QUIET, **properties})
    try:
        for partition, value in values.items():
            producer.produce(TOPIC, value=value, partition=partition, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
    except KafkaException as error:
        raise RemoteFault(f"cluster {config.name}, topic {TOPIC}: cannot write: {error.args[0].name()}") from None
    if problems or len(offsets) < len(values):
        missing = ", ".join(problems) or "not acknowledged in time"
        raise RemoteFault(f"cluster {config.name}: the canary was not accepted by every broker: {missing}")
    return offsets


def _read_back(config: ClusterConfig, values: dict[int, bytes], offsets: dict[int, int]) -> None:
    properties = {
        "group.id": "mirrorbook-canary",  # demanded by librdkafka; nothing is ever committed under it
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }
    consumer = Consumer({**config.properties(), **_QUIET, **properties})
    rest = dict(values)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([TopicPartition(TOPIC, p, o) for p, o in offsets.items()])
        while rest:
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {config.name}: canary acknowledged but not readable: {TOPIC}-{min(rest)}")
            for message in consumer.consume(100, 0.1):
                partition = message.partition()
                if message.error() or partition is None or message.offset() != offsets[partition]:
                    continue  # a transient error ends in the time limit; later canaries of others are not ours
                if message.value() != values[partition]:
                    raise RemoteFault(
                        f"cluster {config.name}, {TOPIC}-{partition}, offset {offsets[partition]}: "
                        "another record was read than the one that was acknowledged there"
                    )
                rest.pop(partition, None)
    except KafkaException as error:
        raise RemoteFault(f"cluster {config.name}, topic {TOPIC}: cannot read: {error.args[0].name()}") from None
    finally:
        consumer.close()

"""Numbered records with a time, in a mirrored topic on the source.

Never retried: the next one follows within a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.error_mapping import ErrorCode, make_fault
from mirror_core.kafka.librdkafka import RenewingProducer
from mirror_core.kafka.log_offsets import OffsetPoint, list_available_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.topics import BROKER_TIME_CONFIGS, NewTopic, correct_configs, create_topics
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.source_observation import Heartbeat
from mirror_core.wire.batch import NO_TIMESTAMP

HEARTBEAT_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    # By size: an unwritten log's tail must survive until it is compared.
    "retention.ms": "-1",
    "retention.bytes": str(8 << 20),
    "segment.bytes": str(2 << 20),
    **BROKER_TIME_CONFIGS,
}
"""Some hours, at most 10 MiB a broker."""
_DELIVERY_TIMEOUT_MS: Final = 1_500
_FLUSH_TIMEOUT_S: Final = 2.0
_TAIL_OFFSETS: Final = 64
_DECODER: Final = msgspec.json.Decoder(Heartbeat)
"""Created at import: two threads meeting a type first crash msgspec (0.22)."""
_DENIED_CODES: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


def ensure_heartbeat_topic(client: ClusterClient, topic: str) -> int:
    """One partition led by each broker. Returns the partition count."""
    metadata = client.metadata([topic])
    if topic in metadata.denied:
        raise make_fault(client, f"topic {topic}", "Metadata (needs DESCRIBE)", ErrorCode.topic_authorization_failed)
    if topic in metadata.topics:
        correct_configs(client, topic)
    else:
        brokers = client.brokers()
        factor = min(3, len(brokers))
        ring = brokers + brokers
        new_topic = NewTopic(
            name=topic,
            partitions=len(brokers),
            replication_factor=factor,
            configs=HEARTBEAT_TOPIC_CONFIGS,
            assignments=tuple(ring[first : first + factor] for first in range(len(brokers))),
        )
        create_topics(client, [new_topic])
        metadata = client.metadata([topic])
    return len(metadata.topics[topic].partitions)


class HeartbeatProducer:
    """Not thread-safe."""

    def __init__(self, cluster: ClusterConfig, topic: str) -> None:
        self._topic = topic
        self._timestamp = 0
        settings: dict[str, Any] = {
            "acks": "all",
            "retries": 0,
            "linger.ms": 0,
            "request.timeout.ms": 1_000,
            "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
            "socket.timeout.ms": 2_000,
        }
        self._client = RenewingProducer(cluster, settings)
        self._producer = self._client.current()

    def write(self, heartbeats: list[Heartbeat]) -> tuple[int, str, bool]:
        """Number acknowledged, first problem, whether denied."""
        acknowledged, errors = 0, list[KafkaError]()

        def on_delivery(error: KafkaError | None, message: object) -> None:
            nonlocal acknowledged
            if error is None:
                acknowledged += 1
            else:
                errors.append(error)

        self._producer = self._client.current()
        for heartbeat in heartbeats:
            value = msgspec.json.encode(heartbeat)
            try:
                self._producer.produce(
                    self._topic,
                    value=value,
                    partition=heartbeat.partition,
                    timestamp=self._timestamp,
                    on_delivery=on_delivery,
                )
            except KafkaException as error:
                errors.append(error.args[0])
        self._producer.flush(_FLUSH_TIMEOUT_S)
        if acknowledged + len(errors) < len(heartbeats):
            self.purge()
        self._client.record_delivery(acknowledged=acknowledged > 0)
        if any(error.code() == KafkaError.INVALID_TIMESTAMP for error in errors):
            self._timestamp = NO_TIMESTAMP  # the topic rejects this clock's time
        denied = any(error.code() in _DENIED_CODES for error in errors)
        problem = "" if acknowledged == len(heartbeats) else errors[0].name() if errors else "no answer in time"
        return acknowledged, problem, denied

    def purge(self) -> None:
        self._producer.purge()
        self._producer.flush(0)


def read_newest_heartbeats(cluster: ClusterConfig, topic: str, *, timeout_s: float) -> tuple[Heartbeat, ...]:
    """For each readable partition; empty without the topic."""
    heartbeats = []
    with ClusterClient(cluster, timeout_s=timeout_s) as client:
        described = client.metadata([topic]).topics.get(topic)
        partitions = [Partition(topic, index) for index in sorted(described.partitions)] if described else []
        starts = list_available_offsets(client, partitions, OffsetPoint.START).offsets
        ends = list_available_offsets(client, partitions, OffsetPoint.STABLE_END).offsets
    with LogReader(cluster, Principal.CONTROL, timeout_s=timeout_s, max_bytes=64 << 10) as reader:
        for partition in sorted(starts.keys() & ends.keys()):
            heartbeat = _read_last_heartbeat(
                reader, partition, max(starts[partition], Offset(ends[partition] - _TAIL_OFFSETS)), ends[partition]
            )
            if heartbeat is not None:
                heartbeats.append(heartbeat)
    return tuple(heartbeats)


def _read_last_heartbeat(reader: LogReader, partition: Partition, start: Offset, end: Offset) -> Heartbeat | None:
    last = None
    try:
        for _, record in reader.records(partition, start, end):
            last = _decode_heartbeat(record.value, partition) or last
    except MirrorError:
        pass  # an unreadable partition hides no others
    return last


def _decode_heartbeat(value: bytes | memoryview | None, partition: Partition) -> Heartbeat | None:
    try:
        heartbeat = _DECODER.decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return heartbeat if heartbeat.partition == partition.index else None

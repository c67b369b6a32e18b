"""Heartbeats: small numbered records with a time, in a mirrored topic on the source.

No retries: a late one is worthless, the next follows within a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from confluent_kafka import KafkaError, KafkaException

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, Principal
from mirror_core.kafka.faults import ErrorCode, fault
from mirror_core.kafka.librdkafka import RenewedProducer
from mirror_core.kafka.offsets import Point, led_offsets
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.topics import BROKER_TIME, NewTopic, create_topics, set_broker_time
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sighting import Heartbeat
from mirror_core.wire.batch import NO_TIMESTAMP

SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    # By size: an unwritten log's tail must survive until it is compared.
    "retention.ms": "-1",
    "retention.bytes": str(8 << 20),
    "segment.bytes": str(2 << 20),
    **BROKER_TIME,
}
"""Some hours, at most 10 MiB a broker."""
_TIMEOUT_MS: Final = 1_500
_LATE_S: Final = 2.0
_TAIL: Final = 64
_DECODER: Final = msgspec.json.Decoder(Heartbeat)
"""Created at import: two threads meeting a type first crash msgspec (0.22)."""
_DENIED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})


def ensure_topic(client: ClusterClient, topic: str) -> int:
    """One partition led by each broker. Returns the partition count."""
    view = client.metadata([topic])
    if topic in view.denied:
        raise fault(client, f"topic {topic}", "Metadata (needs DESCRIBE)", ErrorCode.topic_authorization_failed)
    if topic in view.topics:
        set_broker_time(client, topic)
    else:
        brokers = client.brokers()
        factor = min(3, len(brokers))
        ring = brokers + brokers
        wanted = NewTopic(
            name=topic,
            partitions=len(brokers),
            replication_factor=factor,
            configs=SETTINGS,
            assignments=tuple(ring[first : first + factor] for first in range(len(brokers))),
        )
        create_topics(client, [wanted])
        view = client.metadata([topic])
    return len(view.topics[topic].partitions)


class Beats:
    """Not thread-safe."""

    def __init__(self, cluster: ClusterConfig, topic: str) -> None:
        self._topic = topic
        self._timestamp = 0
        settings: dict[str, Any] = {
            "acks": "all",
            "retries": 0,
            "linger.ms": 0,
            "request.timeout.ms": 1_000,
            "message.timeout.ms": _TIMEOUT_MS,
            "socket.timeout.ms": 2_000,
        }
        self._client = RenewedProducer(cluster, settings)
        self._producer = self._client.current()

    def write(self, beats: list[Heartbeat]) -> tuple[int, str, bool]:
        """Number acknowledged, first problem, whether denied."""
        acknowledged, troubles = 0, list[KafkaError]()

        def told(error: KafkaError | None, message: object) -> None:
            nonlocal acknowledged
            if error is None:
                acknowledged += 1
            else:
                troubles.append(error)

        self._producer = self._client.current()
        for beat in beats:
            value = msgspec.json.encode(beat)
            try:
                self._producer.produce(
                    self._topic, value=value, partition=beat.partition, timestamp=self._timestamp, on_delivery=told
                )
            except KafkaException as error:
                troubles.append(error.args[0])
        self._producer.flush(_LATE_S)
        if acknowledged + len(troubles) < len(beats):
            self.drop()
        self._client.note(acknowledged=acknowledged > 0)
        if any(error.code() == KafkaError.INVALID_TIMESTAMP for error in troubles):
            self._timestamp = NO_TIMESTAMP  # the topic rejects this clock's time
        denied = any(error.code() in _DENIED for error in troubles)
        words = "" if acknowledged == len(beats) else troubles[0].name() if troubles else "no answer in time"
        return acknowledged, words, denied

    def drop(self) -> None:
        self._producer.purge()
        self._producer.flush(0)


def newest(cluster: ClusterConfig, topic: str, *, timeout_s: float) -> tuple[Heartbeat, ...]:
    """Of each readable partition; empty without the topic."""
    found = []
    with ClusterClient(cluster, timeout_s=timeout_s) as client:
        view = client.metadata([topic]).topics.get(topic)
        partitions = [Partition(topic, index) for index in sorted(view.partitions)] if view else []
        starts = led_offsets(client, partitions, Point.START).offsets
        ends = led_offsets(client, partitions, Point.STABLE_END).offsets
    with LogReader(cluster, Principal.CONTROL, timeout_s=timeout_s, max_bytes=64 << 10) as reader:
        for partition in sorted(starts.keys() & ends.keys()):
            last = _last(reader, partition, max(starts[partition], Offset(ends[partition] - _TAIL)), ends[partition])
            if last is not None:
                found.append(last)
    return tuple(found)


def _last(reader: LogReader, partition: Partition, start: Offset, end: Offset) -> Heartbeat | None:
    last = None
    try:
        for _, record in reader.records(partition, start, end):
            last = _read(record.value, partition) or last
    except MirrorError:
        pass  # an unreadable partition hides no others
    return last


def _read(value: bytes | memoryview | None, partition: Partition) -> Heartbeat | None:
    try:
        beat = _DECODER.decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return beat if beat.partition == partition.index else None

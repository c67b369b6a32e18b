"""Writes without a transaction: fences no owner, hides nothing if unacknowledged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaError

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.librdkafka import RenewingProducer
from mirror_core.model.errors import Unreachable
from mirror_core.state.state_records import STATE_TOPIC, State, StateRecord, Tombstone
from mirror_core.wire.batch import NO_TIMESTAMP

_WRITE_TIMEOUT_S: Final = 20.0


class NonFencingWriter:
    """Not thread-safe."""

    def __init__(self, cluster: ClusterConfig) -> None:
        """BadRequest for rejected properties."""
        limits = {"acks": "all", "message.timeout.ms": 10_000, "linger.ms": 0}
        ordering = {"max.in.flight.requests.per.connection": 1}
        self._client = RenewingProducer(cluster, {**limits, **ordering})
        self._producer = self._client.current()
        self.has_written = False

    def put(self, record: StateRecord | Tombstone, on_error: Callable[[str], None] | None = None) -> None:
        """librdkafka drops it after a timeout; a later call reports that to `on_error`."""

        def on_delivery(error: KafkaError | None, message: object) -> None:
            self._client.record_delivery(acknowledged=error is None)
            if on_error is not None and error is not None:
                on_error(error.name())

        self._producer = self._client.current()
        for key, value in State().to_rows(record):
            self._producer.produce(
                STATE_TOPIC, key=key, value=value, partition=0, timestamp=NO_TIMESTAMP, on_delivery=on_delivery
            )
            self.has_written = True
        self._producer.poll(0)

    def flush(self, timeout_s: float) -> bool:
        """False: something was not answered in time. Discards the rest."""
        is_flushed = self._producer.flush(timeout_s) == 0
        self._producer.purge()
        self._producer.poll(0)  # releases callbacks, which may refer to this client
        return is_flushed


def write_acknowledged(cluster: ClusterConfig, records: Iterable[StateRecord | Tombstone], noun: str) -> None:
    """Unreachable, with the noun, if a record was not acknowledged."""
    writer, errors = NonFencingWriter(cluster), list[str]()
    for record in records:
        writer.put(record, errors.append)
    if not writer.flush(_WRITE_TIMEOUT_S):
        errors.append(f"no answer within {_WRITE_TIMEOUT_S:.0f} s")
    if errors:
        raise Unreachable(f"cluster {cluster.name}, topic {STATE_TOPIC}: {noun} was not recorded: {errors[0]}")

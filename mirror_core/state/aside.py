"""Writes without a transaction: fences no owner, hides nothing if unacknowledged."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.librdkafka import RenewedProducer
from mirror_core.state.records import TOPIC, Forget, Record, State
from mirror_core.wire.batch import NO_TIMESTAMP


class Aside:
    """Not thread-safe."""

    def __init__(self, cluster: ClusterConfig) -> None:
        """BadRequest for rejected properties."""
        limits = {"acks": "all", "message.timeout.ms": 10_000, "linger.ms": 0}
        order = {"max.in.flight.requests.per.connection": 1}
        self._client = RenewedProducer(cluster, {**limits, **order})
        self._producer = self._client.current()
        self.began = False

    def put(self, record: Record | Forget, lost: Callable[[str], None] | None = None) -> None:
        """librdkafka drops it after a timeout; a later call reports that to `on_error`."""

        def told(error: KafkaError | None, message: object) -> None:
            self._client.note(acknowledged=error is None)
            if lost is not None and error is not None:
                lost(error.name())

        self._producer = self._client.current()
        for key, value in State().rows(record):
            self._producer.produce(TOPIC, key=key, value=value, partition=0, timestamp=NO_TIMESTAMP, on_delivery=told)
            self.began = True
        self._producer.poll(0)

    def empty(self, within_s: float) -> bool:
        """False: something was not answered in time. Discards the rest."""
        taken = self._producer.flush(within_s) == 0
        self._producer.purge()
        self._producer.poll(0)  # releases callbacks, which may refer to this client
        return taken

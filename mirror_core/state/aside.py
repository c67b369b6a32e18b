"""Signs of life in the state topic, written beside its owners: no transaction, so nobody loses a mirror by one, and one
that brokers do not take hides nothing from readers."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.librdkafka import RenewedProducer
from mirror_core.state.records import TOPIC, Forget, Record, State
from mirror_core.wire.batch import NO_TIMESTAMP


class Aside:
    """A writer of such signs. Not for use by several threads at once."""

    def __init__(self, cluster: ClusterConfig) -> None:
        """BadRequest for properties that the client does not take."""
        limits = {"acks": "all", "message.timeout.ms": 10_000, "linger.ms": 0}
        order = {"max.in.flight.requests.per.connection": 1}
        self._client = RenewedProducer(cluster, {**limits, **order})
        self._producer = self._client.current()
        self.began = False
        """A record was given to the client."""

    def put(self, record: Record | Forget, lost: Callable[[str], None] | None = None) -> None:
        """Into the client's line, which drops it when brokers don't take it for a while. `lost` is told why, when the
        client is used again."""

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
        """Whether brokers took all of it, or answered, in this time. What is left is dropped."""
        taken = self._producer.flush(within_s) == 0
        self._producer.purge()
        self._producer.poll(0)  # whoever is told of a loss is held on to until then, and may hold on to this client
        return taken

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.tls import file_versions
from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import get_logger

_log = get_logger(__name__)

Client = TypeVar("Client", Consumer, Producer)

QUIET_PROPERTIES: Final = {"log_level": 0, "error_cb": lambda error: None}  # errors reach us through calls
MAX_FAILING_S: Final = 5.0
"""Then it is replaced."""


def make_client(kind: Callable[[dict[str, Any]], Client], cluster: ClusterConfig, properties: dict[str, Any]) -> Client:
    """BadRequest for properties that librdkafka rejects."""
    try:
        return kind(properties)
    except KafkaException as error:
        raise BadRequest(f"cluster {cluster.name}: {error.args[0].str()}") from None


class RenewingProducer:
    """Recreated when credentials change or all writes fail: librdkafka reads files once.

    Not thread-safe.
    """

    def __init__(self, cluster: ClusterConfig, settings: dict[str, Any]) -> None:
        self._cluster, self._settings = cluster, settings
        self._credentials_used = self._credentials()
        self._producer = self._make_producer()
        self._failing_since: float | None = None
        self._last_problem = ""

    def current(self) -> Producer:
        """A replaced one drops its queue and calls its callbacks."""
        credentials = self._credentials()
        failing_s = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
        if credentials == self._credentials_used and failing_s < MAX_FAILING_S:
            return self._producer
        try:
            producer = self._make_producer()
        except BadRequest as error:  # certificate without its new key: retry next time
            if str(error) != self._last_problem:
                self._last_problem = str(error)
                _log.warning("goes on with the credentials from before: %s", error, cluster=self._cluster.name)
            return self._producer
        self._producer.purge()
        self._producer.poll(0)
        self._producer, self._credentials_used, self._failing_since, self._last_problem = (
            producer,
            credentials,
            None,
            "",
        )
        _log.info("connects anew, with the credentials of now", cluster=self._cluster.name)
        return producer

    def record_delivery(self, *, acknowledged: bool) -> None:
        if acknowledged:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = time.monotonic()

    def _make_producer(self) -> Producer:
        return make_client(
            Producer, self._cluster, {**self._cluster.properties(), **QUIET_PROPERTIES, **self._settings}
        )

    def _credentials(self) -> Hashable:
        properties = self._cluster.properties()
        return tuple(sorted(properties.items())), file_versions(properties)

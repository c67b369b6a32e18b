"""librdkafka clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.tls import file_versions
from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import logger

_log = logger(__name__)

Client = TypeVar("Client", Consumer, Producer)

QUIET: Final = {"log_level": 0, "error_cb": lambda error: None}  # errors reach us through calls
FAILING_S: Final = 5.0
"""Then it is replaced."""


def client(kind: Callable[[dict[str, Any]], Client], cluster: ClusterConfig, properties: dict[str, Any]) -> Client:
    """BadRequest for properties that librdkafka rejects."""
    try:
        return kind(properties)
    except KafkaException as error:
        raise BadRequest(f"cluster {cluster.name}: {error.args[0].str()}") from None


class RenewedProducer:
    """Recreated when credentials change or all writes fail: librdkafka reads files once.

    Not thread-safe.
    """

    def __init__(self, cluster: ClusterConfig, settings: dict[str, Any]) -> None:
        self._cluster, self._settings = cluster, settings
        self._signed_by = self._credentials()
        self._producer = self._made()
        self._failing_since: float | None = None
        self._trouble = ""

    def current(self) -> Producer:
        """A replaced one drops its queue and calls its callbacks."""
        credentials = self._credentials()
        failing_s = 0.0 if self._failing_since is None else time.monotonic() - self._failing_since
        if credentials == self._signed_by and failing_s < FAILING_S:
            return self._producer
        try:
            made = self._made()
        except BadRequest as error:  # certificate without its new key: retry next time
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("goes on with the credentials from before: %s", error, cluster=self._cluster.name)
            return self._producer
        self._producer.purge()
        self._producer.poll(0)
        self._producer, self._signed_by, self._failing_since, self._trouble = made, credentials, None, ""
        _log.info("connects anew, with the credentials of now", cluster=self._cluster.name)
        return made

    def note(self, *, acknowledged: bool) -> None:
        if acknowledged:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = time.monotonic()

    def _made(self) -> Producer:
        return client(Producer, self._cluster, {**self._cluster.properties(), **QUIET, **self._settings})

    def _credentials(self) -> Hashable:
        properties = self._cluster.properties()
        return tuple(sorted(properties.items())), file_versions(properties)

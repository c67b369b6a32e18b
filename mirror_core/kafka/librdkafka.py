"""Clients of librdkafka, as we make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import BadRequest

Client = TypeVar("Client", Consumer, Producer)

QUIET: Final = {"log_level": 0, "error_cb": lambda error: None}  # errors reach us through the calls themselves


def client(kind: Callable[[dict[str, Any]], Client], cluster: ClusterConfig, properties: dict[str, Any]) -> Client:
    """BadRequest for properties that it doesn't know or take."""
    try:
        return kind(properties)
    except KafkaException as error:
        raise BadRequest(f"cluster {cluster.name}: {error.args[0].str()}") from None

"""Synced topics, shared by tests."""

from __future__ import annotations

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.kafka.topics import (
    NewTopic,
    create_topics,
)
from mirror_core.model.names import ClusterName
from tests.support.kafka_clients import Pair


def client(pair: Pair, name: str) -> ClusterClient:
    return ClusterClient(load_config(pair.config_path).cluster(ClusterName(name)))


def put_topic(pair: Pair, name: str, partitions: int) -> None:
    """A topic on the destination that the mirror has nothing to do with."""
    with client(pair, "west") as west:
        create_topics(west, [NewTopic(name=name, partitions=partitions, replication_factor=1)])

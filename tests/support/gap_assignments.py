"""Gap assignments, shared by tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.model.names import Partition
from mirror_core.model.task_messages import Assignment, PartitionAssignment
from tests.support.mirrored_topics import Mirrored


@contextmanager
def client_connection(client: ClusterClient, partition: Partition) -> Iterator[Connection]:
    """A connection to the partition's leader."""
    (broker,) = client.leaders([partition])
    with Connection(client.config, client.principal, *client.address(broker)) as connection:
        yield connection


def assignment(mirrored: Mirrored, epoch: int, start_ms: int, stop_ms: int) -> Assignment:
    """All partitions of the mirror, without an end."""
    mirror = mirrored.link.mirror
    return Assignment(
        mirror=mirror.name,
        source=mirror.source,
        destination=mirror.destination,
        config_path=str(mirrored.config.path),
        producer_id=mirror.producer_id,
        gaps=mirror.gaps,
        partitions=tuple(
            PartitionAssignment(
                partition=status.partition,
                source_topic_id=status.source_topic_id,
                destination_topic_id=status.destination_topic_id,
            )
            for status in mirrored.statuses.values()
        ),
        epoch=epoch,
        task=0,
        start_ms=start_ms,
        stop_ms=stop_ms,
    )

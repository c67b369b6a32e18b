"""Three nodes, shared by tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import TIMEOUT_S, admin_client


def replicas(cluster: SandboxCluster, partition: Partition) -> tuple[int, int]:
    """The leader's node, and how many replicas are in sync."""
    admin = admin_client(cluster)
    seen = admin.list_topics(partition.topic, timeout=TIMEOUT_S).topics[partition.topic].partitions[partition.index]
    return seen.leader, len(seen.isrs)


def log_end(client: ClusterClient, partition: Partition) -> int:
    """What the leader has, replicated or not."""
    return list_offsets(client, [partition], OffsetPoint.LOG_END)[partition]


@contextmanager
def dead(cluster: SandboxCluster, *nodes: int) -> Iterator[None]:
    for node in nodes:
        cluster.kill(node)
    try:
        yield
    finally:
        # All before any is waited for: none answers before there is a majority again.
        cluster.wait_ready({node: cluster.brokers[node - 1].spawn() for node in nodes}, whole_cluster=False)

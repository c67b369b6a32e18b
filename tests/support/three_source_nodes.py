"""Three source nodes, shared by tests."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.topics import NewTopic, create_topics
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, grant
from tests.support.three_nodes import replicas
from tests.support.waiting import wait_until

NODES = (1, 2, 3)


def topic_on(cluster: SandboxCluster, *assignments: Sequence[int]) -> list[Partition]:
    """The partitions of a new topic that `app` may write, with their replicas on these nodes."""
    name = "t-" + secrets.token_hex(5)
    with as_admin(cluster) as client:
        placed = tuple(tuple(nodes) for nodes in assignments)
        new = NewTopic(name=name, partitions=len(placed), replication_factor=len(placed[0]), assignments=placed)
        create_topics(client, [new])
    grant(cluster, "app", ResourceType.TOPIC, name, [AclOperation.READ, AclOperation.WRITE])
    partitions = [Partition(name, index) for index in range(len(assignments))]
    wait_until(
        lambda: all(replicas(cluster, p)[0] > 0 for p in partitions), timeout_s=TIMEOUT_S, why=f"{name} has leaders"
    )
    return partitions


def leaderless(cluster: SandboxCluster, partition: Partition) -> None:
    wait_until(lambda: replicas(cluster, partition)[0] < 0, timeout_s=TIMEOUT_S, why=f"nobody leads {partition}")

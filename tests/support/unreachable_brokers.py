"""Unreachable brokers, shared by tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kio.schema.find_coordinator.v2.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v2.response import FindCoordinatorResponse
from kio.static.primitive import i8

from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, admin_client, produce
from tests.support.wan_clusters import Distant, distant_clusters

PARTITIONS = 6


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distant]:
    with distant_clusters(tmp_path_factory.mktemp("unreachable"), nodes=3) as made:
        yield made


def leaders(cluster: SandboxCluster) -> dict[Partition, int]:
    topics = admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics
    return {
        Partition(name, index): one.leader for name, view in topics.items() for index, one in view.partitions.items()
    }


def coordinator(cluster: SandboxCluster, transactional_id: str) -> int:
    """Without it nobody could say in the state topic that he lives."""
    with as_admin(cluster) as client:
        request = FindCoordinatorRequest(key=transactional_id, key_type=i8(1))
        return int(client.call(request, FindCoordinatorResponse).node_id)


def ends(cluster: SandboxCluster, partitions: list[Partition]) -> dict[Partition, int]:
    with as_admin(cluster) as client:
        return dict(list_offsets(client, partitions, OffsetPoint.LOG_END))


def write(distant: Distant, partitions: list[Partition], records: int) -> None:
    for partition in partitions:
        produce(distant.pair.east, partition.topic, records, partition=partition.index)

"""Share groups (KIP-932): Kafka's own consumer, and their start offsets."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kio.schema.alter_share_group_offsets.v0.response import AlterShareGroupOffsetsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.consumer_groups import CommittedOffset, fetch_group_offsets, find_coordinator, list_groups
from mirror_core.model.names import Partition
from mirrorbook_tools.sandbox.broker import java_command
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.cluster_admin import as_admin, tool_properties
from tests.support.kafka_clients import TIMEOUT_S
from tests.support.waiting import wait_until


def set_start_offset(client: ClusterClient, group: str, topic: str, offset: int) -> None:
    """As an administrator's tool does it; makes the group."""
    start = AlterShareGroupOffsetsRequestPartition(partition_index=i32(0), start_offset=i64(offset))
    wanted = AlterShareGroupOffsetsRequestTopic(topic_name=TopicName(topic), partitions=(start,))
    request = AlterShareGroupOffsetsRequest(group_id=GroupId(group), topics=(wanted,))

    def taken() -> bool:
        response = client.call(request, AlterShareGroupOffsetsResponse, find_coordinator(client, group))
        return response.error_code is ErrorCode.none and all(
            row.error_code is ErrorCode.none for answered in response.responses for row in answered.partitions
        )

    wait_until(taken, timeout_s=TIMEOUT_S, why=f"the share group {group} starts at {offset}")


def fetch_start_offset(client: ClusterClient, group: str, topic: str) -> CommittedOffset | None:
    listed = list_groups(client).get(group)
    if listed is None:
        return None
    fetched = fetch_group_offsets(client, [listed])
    assert not fetched.faults, fetched.faults
    return fetched.offsets[group].committed.get(Partition(topic, 0))


@contextmanager
def share_consumer(
    cluster: SandboxCluster, group: str, topic: str, delivered: list[int], folder: Path, *options: str
) -> Iterator[None]:
    """Kafka's own; it acknowledges what it has printed. `delivered`: offsets, in order of delivery."""
    command = java_command(
        cluster.brokers[0].jars,
        "128m",
        *("org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", cluster.bootstrap),
        *("--command-config", str(tool_properties(cluster, folder)), "--topic", topic, "--group", group),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false"),
        *options,
    )
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")

    def listen() -> None:
        assert process.stdout is not None
        delivered.extend(
            int(line.split("\t")[0].removeprefix("Offset:"))
            for line in process.stdout
            if line.startswith("Offset:") and line.endswith("\n")
        )

    try:
        with beside(listen, process.terminate):
            yield
    finally:
        process.communicate()


def consume_share(
    cluster: SandboxCluster, group: str, topic: str, folder: Path, *options: str, count: int
) -> list[int]:
    """Offsets of the first `count` records that are delivered; they are acknowledged, and the group has no members."""
    delivered = list[int]()
    with share_consumer(cluster, group, topic, delivered, folder, *options):
        wait_until(lambda: len(delivered) >= count, timeout_s=90, why=f"{group} is delivered {count} records")
    with as_admin(cluster) as client:
        wait_until(lambda: list_groups(client)[group].is_idle, timeout_s=60, why=f"{group} has no members")
    return delivered

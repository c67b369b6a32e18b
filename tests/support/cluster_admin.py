"""What only the administrator of a test's cluster does."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kio.schema.errors import ErrorCode
from kio.schema.produce.v8.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v8.response import ProduceResponse
from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import Records, i16, i32, i32Timedelta

from mirror_core.kafka.acl_requests import (
    BrokerAcls,
    create_acls,
    delete_acls,
    describe_acls,
    wait_until_acls_absent,
    wait_until_acls_present,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import describe_quorum
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers, list_offsets
from mirror_core.kafka.topics import alter_configs, describe_configs, list_known_topics
from mirror_core.model.acl import Acl
from mirror_core.model.names import ClusterName, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import TIMEOUT_S, admin_client, new_topic
from tests.support.waiting import wait_until

HANGING_ID = 4_000_000_000
"""A producer id far from those that a coordinator hands out."""


def as_admin(cluster: SandboxCluster) -> ClusterClient:
    """A client with the sandbox administrator's rights: the mirror's own principals may not change the source."""
    return ClusterClient(admin_config(cluster))


def admin_config(cluster: SandboxCluster) -> ClusterConfig:
    properties = cluster.client_config("admin")
    return ClusterConfig(ClusterName(cluster.name), properties, properties)


def undecided(client: ClusterClient, partitions: list[Partition]) -> list[Partition]:
    """Those in which a transaction is open."""
    stable, high = (
        list_offsets(client, partitions, point) for point in (OffsetPoint.STABLE_END, OffsetPoint.HIGH_WATERMARK)
    )
    return sorted(p for p in partitions if stable[p] < high[p])


def known_topic(cluster: SandboxCluster, partitions: int = 1, **config: str) -> str:
    """A new topic, when each broker knows it: metadata of one may lag, and a mirror is made by whichever is asked."""
    topic = new_topic(cluster, partitions, **config)
    with as_admin(cluster) as client:
        known = partial(list_known_topics, client, topics=[topic])
        wait_until(lambda: all(map(known, client.brokers())), timeout_s=TIMEOUT_S, why=f"each broker knows {topic}")
    return topic


def active_controller(cluster: SandboxCluster) -> int:
    """The node that leads the quorum."""
    with as_admin(cluster) as client:
        found = describe_quorum(client)
    assert found is not None
    return found.active


def alter_topic(client: ClusterClient, topic: str, changes: Mapping[str, str | None]) -> None:
    """Alter a topic's settings, and wait until its broker shows them: before, it goes on by those that were."""

    def shown() -> bool:
        there = describe_configs(client, [topic])[topic].overrides
        return all(there.get(key) == value for key, value in changes.items())

    alter_configs(client, {topic: changes})
    wait_until(shown, timeout_s=TIMEOUT_S, why=f"{topic} has the settings {changes}")


def rights_of(cluster: SandboxCluster) -> frozenset[Acl]:
    """All that is allowed and denied there."""
    with as_admin(cluster) as client:
        found = describe_acls(client)
    assert isinstance(found, BrokerAcls)
    return found.entries


def restore_rights(cluster: SandboxCluster, wanted: frozenset[Acl]) -> None:
    """So it is again, and its brokers know it."""
    superfluous, missing = (now := rights_of(cluster)) - wanted, wanted - now
    with as_admin(cluster) as client:
        if superfluous:
            delete_acls(client, superfluous)
            wait_until_acls_absent(client, superfluous)
        if missing:
            create_acls(client, missing)
            wait_until_acls_present(client, missing)


def tool_properties(cluster: SandboxCluster, folder: Path) -> Path:
    """What Kafka's own tools want as --command-config to be the sandbox's administrator."""
    admin = cluster.client_config("admin")
    path = folder / f"{cluster.name}-admin.properties"
    path.write_text(
        f"security.protocol={admin['security.protocol']}\nsasl.mechanism={admin['sasl.mechanism']}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="admin" password="{admin["sasl.password"]}";\n',
        encoding="utf-8",
    )
    return path


@contextmanager
def broker_setting(cluster: SandboxCluster, name: str, value: str, *, broker: str = "1") -> Iterator[None]:
    """A dynamic setting of one broker, for as long as the context lasts."""
    _alter(cluster, broker, ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    try:
        yield
    finally:
        _alter(cluster, broker, ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))


def _alter(cluster: SandboxCluster, broker: str, entry: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[entry])
    admin = admin_client(cluster)  # kept: collected with a future pending, it would abandon the request
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def hang(cluster: SandboxCluster, partition: Partition) -> None:
    """Write a transactional batch that no coordinator knows of, as bugs that KIP-890 ended used to do."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=HANGING_ID,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for number in range(5):
        assert builder.append(number, timestamp=1_577_836_800_000, key=None, value=b"hanging", headers=[])
    rows = (PartitionProduceData(index=i32(partition.index), records=Records.parse(bytes(builder.build()))),)
    request = ProduceRequest(
        transactional_id=TransactionalId(f"hanging-{partition.topic}"),
        acks=i16(-1),
        timeout=i32Timedelta.parse(datetime.timedelta(seconds=10)),
        topic_data=(TopicProduceData(name=TopicName(partition.topic), partition_data=rows),),
    )

    def written() -> bool:
        [topic] = client.call(request, ProduceResponse).responses
        [row] = topic.partition_responses
        return row.error_code is ErrorCode.none

    # A broker asks the coordinator, and refuses; brokers before 3.6 did not. The setting takes a moment to hold.
    with broker_setting(cluster, "transaction.partition.verification.enable", "false"), as_admin(cluster) as client:
        wait_until(written, timeout_s=TIMEOUT_S, why=f"{partition} takes a batch of a transaction that nobody knows")


def end_hanging(cluster: SandboxCluster, partitions: list[Partition], folder: Path) -> int:
    """Abort what is open in these partitions, as an operator does with a transaction of which its coordinator knows
    nothing any more; how many there were. Only when no producer is at work: their transactions would be torn."""
    tool = ["org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap]
    tool += ["--command-config", str(tool_properties(cluster, folder)), "abort"]
    with as_admin(cluster) as client:
        views = describe_producers(client, partitions)
    starts = [(p, view.open_transaction_start) for p, seen in views.items() for view in seen]
    hanging = [(p, start) for p, start in starts if start >= 0]
    for partition, start in hanging:
        where = ["--topic", partition.topic, "--partition", str(partition.index), "--start-offset", str(start)]
        done = cluster.tool(*tool, *where)
        assert done.returncode == 0, f"{partition}: {done.stderr}"
    return len(hanging)

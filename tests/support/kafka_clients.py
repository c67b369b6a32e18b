"""What tests do to the sandbox's clusters, with client libraries that are not ours."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from mirror_core.model.names import ClusterIdentity, ClusterName
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.waiting import patience, wait_until

TIMEOUT_S = patience(60.0)

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two single-node clusters, and a mirrorbook.yaml that connects to them as mirror-control and mirror-data."""

    sandbox: Sandbox
    east: SandboxCluster
    west: SandboxCluster
    config_path: Path

    @property
    def identities(self) -> tuple[ClusterIdentity, ClusterIdentity]:
        """East's and west's."""
        east, west = (
            ClusterIdentity(ClusterName(cluster.name), self.sandbox.state.clusters[cluster.name].cluster_id)
            for cluster in (self.east, self.west)
        )
        return east, west


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Record:
    """A record as a consumer sees it; equal on both clusters when the copy is right.

    A timestamp of -1: none, be it that the producer gave none or that the format (0) has none.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    append_time: bool = field(default=False, compare=False)
    """Whether the timestamp is the broker's: a copy holds the same time, and calls it the producer's."""


def admin_client(cluster: SandboxCluster, user: str = "admin") -> AdminClient:
    return AdminClient({**cluster.client_config(user)})


def new_topic(cluster: SandboxCluster, partitions: int = 1, prefix: str = "t-", **config: str) -> str:
    """Create a topic of a name never used before; `cleanup_policy="compact"` sets cleanup.policy."""
    name = prefix + secrets.token_hex(5)
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = admin_client(cluster)
    futures = admin.create_topics([NewTopic(name, partitions, config=settings)], request_timeout=TIMEOUT_S)
    futures[name].result(TIMEOUT_S)

    def led() -> bool:
        seen = admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions
        return len(seen) == partitions and all(partition.leader >= 0 for partition in seen.values())

    wait_until(led, timeout_s=TIMEOUT_S, why=f"{cluster.name} elects leaders of {name}")
    return name


def replace_topic(cluster: SandboxCluster, topic: str) -> None:
    """Delete it, and create another one of its name."""
    admin = admin_client(cluster)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    wait_until(lambda: topic not in admin.list_topics().topics, timeout_s=TIMEOUT_S, why=f"{topic} is gone")
    admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "-1"})])[topic].result(TIMEOUT_S)

    def led() -> bool:
        return any(p.leader >= 0 for p in admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions.values())

    wait_until(led, timeout_s=TIMEOUT_S, why=f"{cluster.name} elects a leader of {topic}")


def produce(
    cluster: SandboxCluster, topic: str, count: int, *, partition: int = 0, user: str = "admin", **config: str
) -> list[Record]:
    """Produce `count` records of different content, in order; what was acknowledged, with its offsets.

    Raises KafkaException when a record is refused.
    `config` are producer properties with `_` for `.`, such as `compression_type="zstd"`, `linger_ms="0"`.
    """
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({**cluster.client_config(user), "enable.idempotence": True, **settings})
    acked: list[Record] = []

    def delivered(error: KafkaError | None, message: Message, headers: Headers) -> None:
        if error is not None:
            raise KafkaException(error)
        acked.append(_record(message, headers))  # a delivery report doesn't carry the headers

    run, now = secrets.token_hex(3), int(time.time() * 1000)
    for number in range(count):
        # Odd milliseconds, a header, bytes that are no UTF-8, and a null key now and then: as in production.
        headers: Headers = [("n", str(number).encode())]
        producer.produce(
            topic,
            key=None if number % 7 == 6 else f"{run}-{number}".encode(),
            value=b"\xff%d " % number + secrets.token_bytes(20).hex().encode(),
            headers=[*headers],
            partition=partition,
            timestamp=now + 2 * number + 1,
            on_delivery=partial(delivered, headers=headers),
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0, f"{cluster.name} {topic}-{partition}: not everything was acknowledged"
    return sorted(acked)


def read_all(
    cluster: SandboxCluster,
    topic: str,
    user: str = "admin",
    *,
    since: Mapping[int, int] | None = None,
    committed: bool = True,
) -> list[Record]:
    """Everything a consumer of librdkafka gets, from log start to the last stable offset of now.

    `committed`: one that reads committed records only; or else all, up to the high watermark.
    `since`: first offset of each partition, for those that are not to be read from their log start.
    """
    return read_topics(cluster, [topic], user, since=since, committed=committed)[topic]


def read_topics(
    cluster: SandboxCluster,
    topics: Collection[str],
    user: str = "admin",
    *,
    since: Mapping[int, int] | None = None,
    committed: bool = True,
) -> dict[str, list[Record]]:
    """The same of several topics at once; the records of each are sorted."""
    starts = since or {}
    settings = {
        "group.id": "reader-" + secrets.token_hex(4),
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    consumer = Consumer({**cluster.client_config(user), **settings})
    found: dict[str, list[Record]] = {topic: [] for topic in topics}
    try:
        known = consumer.list_topics(timeout=TIMEOUT_S).topics
        assert set(topics) <= set(known), f"{cluster.name} has no topics {set(topics) - set(known)}"
        partitions = [(topic, number) for topic in topics for number in known[topic].partitions]
        consumer.assign([TopicPartition(t, number, starts.get(number, OFFSET_BEGINNING)) for t, number in partitions])
        open_ends = set(partitions)
        deadline = time.monotonic() + TIMEOUT_S
        while open_ends:
            assert time.monotonic() < deadline, f"{cluster.name}: no end of {sorted(open_ends)}"
            for message in consumer.consume(1000, 0.05):
                error, topic, partition = message.error(), message.topic(), message.partition()
                assert topic is not None
                assert partition is not None
                if error is None:
                    found[topic].append(_record(message, _headers(message)))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, f"{cluster.name} {topic}: {error}"
                    open_ends.discard((topic, partition))
    finally:
        consumer.close()
    return {topic: sorted(records) for topic, records in found.items()}


def read_all_aiokafka(cluster: SandboxCluster, topic: str) -> list[Record]:
    """The same as `read_all` by another family of clients, so that a mistake of one library doesn't decide."""
    return read_topics_aiokafka(cluster, [topic])[topic]


def read_topics_aiokafka(
    cluster: SandboxCluster, topics: Collection[str], user: str = "admin"
) -> dict[str, list[Record]]:
    return asyncio.run(_read_aiokafka(cluster, topics, user))


async def _read_aiokafka(cluster: SandboxCluster, topics: Collection[str], user: str) -> dict[str, list[Record]]:
    config = cluster.client_config(user)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap,
        security_protocol=config["security.protocol"],
        sasl_mechanism=config["sasl.mechanism"],
        sasl_plain_username=user,
        sasl_plain_password=config["sasl.password"],
        isolation_level="read_committed",
        enable_auto_commit=False,
        # Not seek_to_beginning: that races with the reset that assign() begins, and may end up at the end.
        auto_offset_reset="earliest",
    )
    try:
        await consumer.start()
        # Its own partitions_for_topic knows nothing of a topic that was not subscribed to: reading nothing is no test.
        known = admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics
        assert set(topics) <= set(known), f"{cluster.name} has no topics {set(topics) - set(known)}"
        partitions = [AioPartition(topic, number) for topic in topics for number in known[topic].partitions]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: dict[str, list[Record]] = {topic: [] for topic in topics}
        deadline = time.monotonic() + TIMEOUT_S
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            assert time.monotonic() < deadline, f"{cluster.name}: aiokafka never got to {ends}"
            batches = await consumer.getmany(timeout_ms=200)
            for partition, messages in batches.items():
                found[partition.topic] += [
                    Record(
                        partition=partition.partition,
                        offset=message.offset,
                        timestamp_ms=-1 if message.timestamp is None else message.timestamp,
                        key=message.key,
                        value=message.value,
                        headers=tuple(message.headers),
                        append_time=message.timestamp_type == 1,
                    )
                    for message in messages
                ]
        return {topic: sorted(records) for topic, records in found.items()}
    finally:
        await consumer.stop()


def new_user(*clusters: SandboxCluster) -> tuple[str, str]:
    """Name and password of a user without any right, the same on these clusters. `forget_user` takes all of it away."""
    name, password = "u-" + secrets.token_hex(4), secrets.token_hex(12)
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(name, scram, password.encode())
    for cluster in clusters:
        admin = admin_client(cluster)
        admin.alter_user_scram_credentials([upsertion])[name].result(TIMEOUT_S)
        known = partial(_scram_of, admin, name)
        wait_until(known, timeout_s=TIMEOUT_S, why=f"{cluster.name} knows user {name}")
    return name, password


def _scram_of(admin: AdminClient, user: str) -> list[ScramCredentialInfo]:
    futures = admin.describe_user_scram_credentials([user])
    assert isinstance(futures, dict), "one future a user, when users are named"
    try:
        return list(futures[user].result(TIMEOUT_S).scram_credential_infos)
    except KafkaException:
        return []  # not known yet


def forget_user(cluster: SandboxCluster, name: str) -> None:
    """Take a user's ACLs and password away: other tests see all of a cluster's ACLs."""
    admin = admin_client(cluster)
    anywhere = (ResourceType.ANY, cast(str, None), ResourcePatternType.ANY)  # None is a filter that lets all through
    anything = (cast(str, None), AclOperation.ANY, AclPermissionType.ANY)
    everything = AclBindingFilter(*anywhere, f"User:{name}", *anything)
    for future in admin.delete_acls([everything], request_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)
    if _scram_of(admin, name):
        deletion = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512)
        admin.alter_user_scram_credentials([deletion])[name].result(TIMEOUT_S)


def grant(
    cluster: SandboxCluster,
    user: str,
    kind: ResourceType,
    name: str,
    operations: Sequence[AclOperation],
    *,
    prefixed: bool = False,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> None:
    """Add ACLs, and wait until a broker shows them: CreateAcls returning doesn't mean that they hold."""
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    bindings = [AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission) for operation in operations]
    admin = admin_client(cluster)
    futures = admin.create_acls(bindings, request_timeout=TIMEOUT_S)
    for future in futures.values():
        future.result(TIMEOUT_S)
    for operation in operations:
        wanted = AclBindingFilter(kind, name, pattern, f"User:{user}", "*", operation, permission)
        shown = partial(_acls_like, admin, wanted)
        wait_until(shown, timeout_s=TIMEOUT_S, why=f"{cluster.name} shows {permission.name} {operation.name} on {name}")


def _acls_like(admin: AdminClient, wanted: AclBindingFilter) -> list[AclBinding]:
    return list(admin.describe_acls(wanted).result(TIMEOUT_S))


def _headers(message: Message) -> Headers:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]


def _record(message: Message, headers: Headers) -> Record:
    partition, offset, (kind, timestamp) = message.partition(), message.offset(), message.timestamp()
    assert partition is not None
    assert offset is not None
    return Record(
        partition=partition,
        offset=offset,
        timestamp_ms=-1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        key=message.key(),
        value=message.value(),
        headers=tuple(headers),
        append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
    )

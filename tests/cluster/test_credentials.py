"""What a thief of one credential tries beyond its documented rights: each attempt is refused, and changes nothing.

Rights are exactly those of `rights/required_acls.py`, for one role of one cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.fetch.v10.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v10.response import FetchResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from mirror_core.kafka.acl_requests import create_acls, wait_until_acls_present
from mirror_core.kafka.client import ClusterClient, borrowed_connection
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.names import ACTIVE_TOPIC, ClusterName, Offset, Partition
from mirror_core.model.sync_state import SyncCategory
from mirror_core.rights.required_acls import REQUIRED_ACLS, ClusterRole
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.state.writer import make_control_id
from mirror_core.sync.mirror_sync import sync_mirror
from mirror_core.wire.batch import NO_TIMESTAMP, TRANSACTIONAL, readdress
from mirror_core.wire.batch_encoder import build_batches
from mirror_core.wire.produce import decode_response, encode_request
from mirror_core.wire.records import Codec
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import writer_of
from tests.support.cluster_admin import as_admin
from tests.support.group_commits import commit_offsets, fetch_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce, read_all
from tests.support.mirrored_topics import Mirrored, new_mirror

pytestmark = pytest.mark.cluster

NewUser = Callable[..., tuple[str, str]]


@dataclass(frozen=True, slots=True)
class World:
    """A mirror of one topic from east to west, copied, with a group of its application's on both clusters."""

    pair: Pair
    mirrored: Mirrored
    topic: str
    other: str
    """A topic of somebody else's on west."""
    group: str
    transactional_id: str
    """An application's."""

    def seen(self) -> Mapping[str, object]:
        """What no thief may have changed, as an administrator sees it."""
        found: dict[str, object] = {}
        for cluster in (self.pair.east, self.pair.west):
            admin = admin_client(cluster)
            topics = admin.list_topics(timeout=TIMEOUT_S).topics
            found[f"{cluster.name} topics"] = {n: len(t.partitions) for n, t in topics.items() if n[:2] != "__"}
            kept = [ConfigResource(ConfigResource.Type.TOPIC, self.topic)]
            (configs,) = admin.describe_configs(kept).values()
            found[f"{cluster.name} settings"] = {n: e.value for n, e in configs.result(TIMEOUT_S).items()}
            found[f"{cluster.name} records"] = read_all(cluster, self.topic)
        found["others"] = read_all(self.pair.west, self.other)
        found["state"] = self.mirrored.state.mirrors[self.mirrored.name]
        found["committed"] = self.committed()
        return found

    def committed(self) -> object:
        """By the group, on east."""
        with as_admin(self.pair.east) as client:
            return fetch_offsets(client, self.group)


class Thief:
    """Whoever holds one user's password on one cluster."""

    def __init__(self, world: World, cluster: SandboxCluster, user: str, password: str) -> None:
        self.world, self.cluster, self.user = world, cluster, user
        self.config = {
            **cluster.client_config("admin"),
            "sasl.username": user,
            "sasl.password": password,
            "log_level": "0",
        }
        self.admin = AdminClient({**self.config})

    def write(self, topic: str) -> None:
        producer, failed = Producer({**self.config, "message.timeout.ms": 60_000}), list[KafkaError]()
        producer.produce(topic, b"forged", on_delivery=lambda error, _: failed.append(error) if error else None)
        assert producer.flush(TIMEOUT_S) == 0
        if failed:
            raise KafkaException(failed[0])

    def read(self, topic: str, replica: int = -1) -> None:
        """As a consumer; or as a replica, which gets whatever a broker holds."""
        wanted = FetchPartition(partition=i32(0), fetch_offset=i64(0), partition_max_bytes=i32(1_000))
        request = FetchRequest(
            replica_id=BrokerId(replica),
            max_wait=i32Timedelta.parse(timedelta(0)),
            min_bytes=i32(0),
            topics=(FetchTopic(topic=TopicName(topic), partitions=(wanted,)),),
            forgotten_topics_data=(),
        )
        with ClusterClient(ClusterConfig(ClusterName(self.cluster.name), self.config, self.config)) as client:
            (answer,) = client.call(request, FetchResponse).responses
        # Brokers authorize before they look at the offset, and other tests may have moved the log's start.
        if (error := answer.partitions[0].error_code) not in (0, KafkaError.OFFSET_OUT_OF_RANGE):
            raise KafkaException(KafkaError(error))

    def leave_open(self, topic: str, transactional_id: str | None) -> None:
        """A batch of a transaction that no coordinator knows: nobody would end it, and nothing behind it be read."""
        ((batch, _),) = build_batches([("k", b"forged")], 1_000, Codec.NONE, NO_TIMESTAMP, TRANSACTIONAL)
        readdress(memoryview(batch), 1 << 40, 0, 0)
        with ClusterClient(ClusterConfig(ClusterName(self.cluster.name), self.config, self.config)) as client:
            (leader,) = client.leaders([Partition(topic, 0)])
            with borrowed_connection(client, client.address(leader)) as connection:
                rows = [(topic, 0, memoryview(batch))]
                connection.send(encode_request(rows, 1, "t", timeout_ms=10_000, transactional_id=transactional_id))
                (produced,) = decode_response(memoryview(connection.receive())[4:])
        if produced.error:
            raise KafkaException(KafkaError(produced.error))

    def empty(self, topic: str) -> None:
        end = TopicPartition(topic, 0, -1)
        done(self.admin.delete_records([end], request_timeout=TIMEOUT_S))

    def delete(self, topic: str) -> None:
        done(self.admin.delete_topics([topic], request_timeout=TIMEOUT_S))

    def create(self, topic: str) -> None:
        done(self.admin.create_topics([NewTopic(topic, 1)], request_timeout=TIMEOUT_S))

    def add_partitions(self, topic: str) -> None:
        done(self.admin.create_partitions([NewPartitions(topic, 9)], request_timeout=TIMEOUT_S))

    def change_settings(self, topic: str) -> None:
        entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        done(self.admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S))

    def grant_everything(self) -> None:
        user, both = f"User:{self.user}", (AclOperation.ALL, AclPermissionType.ALLOW)
        binding = AclBinding(ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, user, "*", *both)
        done(self.admin.create_acls([binding], request_timeout=TIMEOUT_S))

    def lift_fence(self) -> None:
        """And whatever else is denied."""
        anything: Any = (None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.DENY)
        done(self.admin.delete_acls([AclBindingFilter(ResourceType.ANY, *anything)], request_timeout=TIMEOUT_S))

    def replace_password_of_admin(self) -> None:
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        done(self.admin.alter_user_scram_credentials([UserScramCredentialUpsertion("admin", scram, b"forged")]))

    def commit(self, group: str) -> None:
        forged = ConsumerGroupTopicPartitions(group, [TopicPartition(self.world.topic, 0, 0)])
        listed = done(self.admin.alter_consumer_group_offsets([forged]))
        for partition in listed.topic_partitions:
            if partition.error:
                raise KafkaException(partition.error)

    def delete_group(self, group: str) -> None:
        done(self.admin.delete_consumer_groups([group], request_timeout=TIMEOUT_S))

    def fence_owner(self, transactional_id: str) -> None:
        """Whoever begins with somebody's transactional id, ends what they have open."""
        Producer({**self.config, "transactional.id": transactional_id}).init_transactions(TIMEOUT_S)


def done(futures: Mapping[Any, Future[Any]]) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def refusal(attempt: Callable[[], None]) -> str:
    """The broker's word for it; empty when the attempt succeeded."""
    try:
        attempt()
    except KafkaException as error:
        return str(error.args[0].name())
    return ""


def with_needs(
    world: World,
    cluster: SandboxCluster,
    user: tuple[str, str],
    role: ClusterRole,
    principal: str,
    without: Collection[Operation] = (),
) -> Thief:
    """A user that may do what this principal needs in this role, and nothing else. `without`: optional operations."""
    needs = [
        need
        for need in REQUIRED_ACLS
        if (need.role, need.principal) == (role, principal) and not (need.operation in without and need.lost_feature)
    ]
    return with_acls(world, cluster, user, *(need.to_acl(f"User:{user[0]}") for need in needs))


def with_acls(world: World, cluster: SandboxCluster, user: tuple[str, str], *acls: Acl) -> Thief:
    with ClusterClient(load_config(world.pair.config_path).cluster(cluster.name)) as client:
        create_acls(client, acls)
        wait_until_acls_present(client, acls, TIMEOUT_S)
    return Thief(world, cluster, *user)


@pytest.fixture(scope="module")
def world(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> World:
    topic, other = new_topic(pair.east), new_topic(pair.west)
    group, own_id = f"g-{secrets.token_hex(4)}", f"tx-{secrets.token_hex(4)}"
    produce(pair.east, topic, 20)
    produce(pair.west, other, 3)
    mirrored = new_mirror(pair, tmp_path_factory.mktemp("credentials"), topic, groups=(group,))
    mirrored.copy()
    made = World(pair, mirrored, topic, other, group, own_id)
    for side in (pair.east, pair.west):
        with as_admin(side) as client:
            assert commit_offsets(client, group, {Partition(topic, 0): (Offset(7), "")}) == {}
    return made


@pytest.fixture(autouse=True)
def unchanged(world: World) -> Iterator[None]:
    before = world.seen()
    yield
    assert world.seen() == before


def test_the_data_principal_on_the_source(world: World, new_user: NewUser) -> None:
    east = world.pair.east
    thief = with_needs(world, east, new_user(east), ClusterRole.SOURCE, "data")
    assert refusal(lambda: thief.read(world.topic)) == "", "what it is for"
    assert refusal(lambda: thief.write(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.empty(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.commit(world.group)) == "GROUP_AUTHORIZATION_FAILED"
    assert refusal(thief.grant_everything) == "CLUSTER_AUTHORIZATION_FAILED"
    assert refusal(thief.lift_fence) == "CLUSTER_AUTHORIZATION_FAILED"
    assert refusal(thief.replace_password_of_admin) == "CLUSTER_AUTHORIZATION_FAILED"


def test_the_data_principal_on_the_destination(world: World, new_user: NewUser) -> None:
    west = world.pair.west
    thief = with_needs(world, west, new_user(west), ClusterRole.DESTINATION, "data")
    assert refusal(lambda: thief.read(world.topic)) == "", "what it is for"
    assert refusal(lambda: thief.write(STATE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED", "states, plans, approvals"
    assert refusal(lambda: thief.empty(STATE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.delete(STATE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.create(ACTIVE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED", "where applications go"
    shut_out = refusal(lambda: thief.fence_owner(str(make_control_id(world.mirrored.name))))
    assert shut_out == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "whoever owns the state topic"
    for own_id in (None, world.transactional_id):
        hung = refusal(lambda own_id=own_id: thief.leave_open(world.topic, own_id))  # type: ignore[misc]
        assert hung == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "readers of committed records would wait for ever"
    assert refusal(lambda: thief.change_settings(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.add_partitions(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(thief.grant_everything) == "CLUSTER_AUTHORIZATION_FAILED"
    assert refusal(thief.lift_fence) == "CLUSTER_AUTHORIZATION_FAILED"
    assert refusal(thief.replace_password_of_admin) == "CLUSTER_AUTHORIZATION_FAILED"


def test_the_control_principal_on_the_source(world: World, new_user: NewUser) -> None:
    """As long as it grants itself no more, for which it has ALTER on the cluster."""
    east = world.pair.east
    thief = with_needs(world, east, new_user(east), ClusterRole.SOURCE, "control")
    assert refusal(lambda: thief.read(world.topic)) == "", "what it is for"
    assert refusal(lambda: thief.write(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.empty(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.delete(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.change_settings(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.commit(world.group)) == "GROUP_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.fence_owner(world.transactional_id)) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


def test_the_control_principal_on_the_destination(world: World, new_user: NewUser) -> None:
    """The same, where no failback may hand over: with CLUSTER_ACTION it reads every topic as a follower."""
    west, without = world.pair.west, {Operation.CLUSTER_ACTION}
    thief = with_needs(world, west, new_user(west), ClusterRole.DESTINATION, "control", without)
    assert refusal(lambda: thief.read(STATE_TOPIC)) == "", "what it is for"
    assert refusal(lambda: thief.delete_group(world.group)) == "GROUP_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.fence_owner(world.transactional_id)) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.read(world.other, replica=2)) == "TOPIC_AUTHORIZATION_FAILED"


def test_an_application_before_the_promotion(world: World, new_user: NewUser) -> None:
    """The same user on both clusters; its rights on west are what a sync has carried from east."""
    user, own_id = new_user(world.pair.east, world.pair.west), f"tx-{secrets.token_hex(4)}"
    for resource, name, operation in (
        (Resource.TOPIC, world.topic, Operation.READ),
        (Resource.TOPIC, world.topic, Operation.WRITE),
        (Resource.TOPIC, world.topic, Operation.DELETE),
        (Resource.GROUP, world.group, Operation.READ),
        (Resource.TRANSACTIONAL_ID, own_id, Operation.WRITE),
    ):
        acl = Acl(resource=resource, name=name, principal=f"User:{user[0]}", operation=operation)
        with_acls(world, world.pair.east, user, acl)
    with writer_of(world.mirrored.link) as writer:
        sync_mirror(world.mirrored.link, writer, only=frozenset({SyncCategory.TOPICS, SyncCategory.ACLS}))
    thief = Thief(world, world.pair.west, *user)
    assert refusal(lambda: thief.read(world.topic)) == "", "what it is for"
    assert refusal(lambda: thief.write(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.empty(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.delete(world.topic)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.read(STATE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.read(world.other)) == "TOPIC_AUTHORIZATION_FAILED"
    shut_out = refusal(lambda: thief.fence_owner(str(make_control_id(world.mirrored.name))))
    assert shut_out == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert refusal(thief.grant_everything) == "CLUSTER_AUTHORIZATION_FAILED"
    assert refusal(thief.lift_fence) == "CLUSTER_AUTHORIZATION_FAILED"


def test_an_observer_on_a_broker_s_host(world: World, new_user: NewUser) -> None:
    west = world.pair.west
    user = new_user(west)
    read = Acl(resource=Resource.TOPIC, name=STATE_TOPIC, principal=f"User:{user[0]}", operation=Operation.READ)
    thief = with_acls(world, west, user, read)
    assert refusal(lambda: thief.read(STATE_TOPIC)) == "", "what it is for"
    assert refusal(lambda: thief.write(STATE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.empty(STATE_TOPIC)) == "TOPIC_AUTHORIZATION_FAILED"
    assert refusal(lambda: thief.read(world.topic)) == "TOPIC_AUTHORIZATION_FAILED", "records of applications"
    assert refusal(lambda: thief.commit(world.group)) == "GROUP_AUTHORIZATION_FAILED"
    assert refusal(thief.grant_everything) == "CLUSTER_AUTHORIZATION_FAILED"
    assert refusal(thief.lift_fence) == "CLUSTER_AUTHORIZATION_FAILED"

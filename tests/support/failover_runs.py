"""Failover runs, shared by tests."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.kafka.acl_requests import BrokerAcls, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import Acl
from mirror_core.model.run import RunMode
from mirror_core.runbook.failover_conductor import Failover
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import Pair, grant, new_topic
from tests.support.mirrored_topics import Mirrored


def app_topic(pair: Pair, partitions: int = 1, prefix: str = "t-", **config: str) -> str:
    """A topic of its own that user `app` may write by a grant on its name: a promoted prefix would open others."""
    topic = new_topic(pair.east, partitions, prefix=prefix, **config)
    grant(pair.east, "app", ResourceType.TOPIC, topic, [AclOperation.READ, AclOperation.WRITE])
    return topic


def write(cluster: SandboxCluster, topic: str, user: str = "app") -> KafkaError | None:
    """The answer to one write; None when it was accepted."""
    answers: list[KafkaError | None] = []
    producer = Producer({**cluster.client_config(user), "message.timeout.ms": 20_000, "log_level": 0})
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: answers.append(error))
    producer.flush(30)
    assert len(answers) == 1, "no answer to a write"
    return answers[0]


def denied(cluster: SandboxCluster, topic: str, user: str = "app") -> bool:
    error = write(cluster, topic, user)
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    return error is not None


def commit(cluster: SandboxCluster, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({**cluster.client_config("admin"), "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(cluster: SandboxCluster, group: str, topic: str) -> int:
    consumer = Consumer({**cluster.client_config("admin"), "group.id": group})
    found = consumer.committed([TopicPartition(topic, 0)], timeout=30)[0].offset
    consumer.close()
    return int(found)


def acls(mirrored: Mirrored, cluster: str) -> frozenset[Acl]:
    with ClusterClient(mirrored.config.cluster(cluster)) as client:
        found = describe_acls(client)
    assert isinstance(found, BrokerAcls)
    return found.entries


def begin(failover: Failover) -> str:
    return failover.begin(failover.plan(RunMode.PLANNED).hash).id

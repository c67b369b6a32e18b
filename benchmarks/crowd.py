"""Many topics with a little in each, many groups that have committed on some of them, and rights by name on all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.ground import TIMEOUT_S
from mirror_core.kafka.acl_requests import create_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.consumer_groups import COMMITTED, GroupOffsetsClient
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster

RECORDS: Final = 10
"""In each partition."""
VALUE: Final = b"x" * 100
AT_ONCE: Final = 100
"""Topics created by one request: a controller applies a request as a whole."""
CREATE_S: Final = 300.0
APPLICATIONS: Final = 50
TOPICS_OF_A_GROUP: Final = 10


@dataclass(frozen=True, slots=True)
class Crowd:
    """What is mirrored."""

    topics: int
    width: int
    """Partitions of each topic."""
    groups: int

    def names(self) -> list[str]:
        return [f"crowd.team-{number % APPLICATIONS:02}.stream-{number:05}" for number in range(self.topics)]

    def partitions(self) -> list[Partition]:
        return [Partition(name, index) for name in self.names() for index in range(self.width)]

    def committed(self) -> dict[str, dict[Partition, tuple[Offset, str]]]:
        """By group: each is in the middle of all partitions of its topics."""
        names = self.names()
        return {
            f"crowd-group-{number:04}": {
                Partition(names[(number + step * 97) % len(names)], index): (Offset(RECORDS // 2), "")
                for step in range(min(TOPICS_OF_A_GROUP, len(names)))
                for index in range(self.width)
            }
            for number in range(self.groups)
        }

    def rights(self) -> Iterator[Acl]:
        """Each topic may be written by its application, each group be used by one."""
        for number, name in enumerate(self.names()):
            yield Acl(
                resource=Resource.TOPIC,
                name=name,
                principal=f"User:team-{number % APPLICATIONS:02}",
                operation=Operation.WRITE,
            )
        for number, group in enumerate(self.committed()):
            yield Acl(
                resource=Resource.GROUP,
                name=group,
                principal=f"User:team-{number % APPLICATIONS:02}",
                operation=Operation.READ,
            )


def create(cluster: SandboxCluster, config: ClusterConfig, crowd: Crowd) -> float:
    """Its topics, on this cluster, as an administrator's tool would. Seconds until every partition has a leader."""
    admin = AdminClient({**cluster.client_config("admin")})
    names = crowd.names()
    began = time.monotonic()
    for start in range(0, len(names), AT_ONCE):
        wanted = [NewTopic(name, crowd.width) for name in names[start : start + AT_ONCE]]
        made = admin.create_topics(wanted, operation_timeout=TIMEOUT_S)
        for future in made.values():
            future.result(CREATE_S)
    with ClusterClient(config, timeout_s=TIMEOUT_S) as client:
        while not _led(client, crowd):
            if time.monotonic() - began > CREATE_S:
                raise SystemExit(f"{client.name}: not every partition has a leader after {CREATE_S:.0f} s")
            time.sleep(0.1)
    return time.monotonic() - began


def _led(client: ClusterClient, crowd: Crowd) -> bool:
    topics = client.metadata(crowd.names()).topics
    leaders = [leader.broker for view in topics.values() for leader in view.partitions.values()]
    return len(leaders) == len(crowd.partitions()) and min(leaders) >= 0


def gather(cluster: SandboxCluster, config: ClusterConfig, crowd: Crowd) -> None:
    """Records, committed offsets and rights, for topics that are there."""
    write(cluster, crowd)
    with ClusterClient(config, timeout_s=TIMEOUT_S) as client:
        create_acls(client, crowd.rights())
    commit(config, crowd, RECORDS // 2)


def commit(config: ClusterConfig, crowd: Crowd, offset: int) -> None:
    """Every group has read up to here. The first commits of a cluster wait until it has made its offsets topic."""
    deadline = time.monotonic() + TIMEOUT_S
    rest = {group: dict.fromkeys(mine, (Offset(offset), "")) for group, mine in crowd.committed().items()}
    with ClusterClient(config, timeout_s=TIMEOUT_S) as client:
        while rest:
            for group, words in GroupOffsetsClient(client).commit(rest).items():
                if refused := set(words.values()) - {COMMITTED}:
                    raise SystemExit(f"{client.name}: offsets of group {group} were not committed: {refused}")
                if words.keys() == rest[group].keys():
                    del rest[group]
            if time.monotonic() > deadline:
                raise SystemExit(f"{client.name}: {len(rest)} groups have no coordinator")
            time.sleep(0.1)


def write(
    cluster: SandboxCluster, crowd: Crowd, records: int = RECORDS, *, every: int = 1, value: bytes = VALUE
) -> None:
    """So many records into each partition, or into every second, third... one."""
    settings = {**cluster.client_config("admin"), "linger.ms": "50", "queue.buffering.max.messages": "1000000"}
    settings["topic.metadata.propagation.max.ms"] = str(int(CREATE_S * 1000))
    producer, refused = Producer(settings), list[str]()

    def told(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(str(error))

    for _ in range(records):
        for partition in crowd.partitions()[::every]:
            producer.produce(partition.topic, value, partition=partition.index, on_delivery=told)
        producer.poll(0)
    left = producer.flush(CREATE_S)
    if left or refused:
        raise SystemExit(f"{cluster.name}: {left + len(refused)} records were not taken: {refused[:1]}")

"""Many topics of one partition, each with a consumer group and an application that may use both."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from mirror_core.kafka.acl_requests import create_acls, delete_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.model.acl import Acl, Operation, Resource
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client
from tests.support.mirrored_topics import Mirrored, new_mirror

SETTINGS: Final = {"retention.ms": "86400000", "max.message.bytes": "2000000"}
"""Of each topic: two that promotion sets."""


@contextmanager
def crowd(pair: Pair, evidence: Path, count: int) -> Iterator[Mirrored]:
    """A mirror of so many topics and groups that is copied and synced; every group has gone on since."""
    prefix = f"t-{secrets.token_hex(3)}"
    groups = {f"{prefix}-{number}-group": f"{prefix}-{number}" for number in range(count)}
    admin = admin_client(pair.east)
    for future in admin.create_topics([NewTopic(t, 1, config=SETTINGS) for t in groups.values()]).values():
        future.result(TIMEOUT_S)
    producer = Producer({**pair.east.client_config("admin")})
    for topic in groups.values():
        for number in range(4):
            producer.produce(topic, f"{number}".encode())
    assert producer.flush(TIMEOUT_S) == 0
    commit(pair, groups, 2)
    with granted(pair, groups):
        mirrored = new_mirror(pair, evidence, rf"{prefix}-\d+", groups=(f"{prefix}-.*",))
        mirrored.copy()
        mirror_commands.run_sync(mirrored.link)
        commit(pair, groups, 3)
        yield mirrored


def commit(pair: Pair, groups: Mapping[str, str], offset: int) -> None:
    """Each group for its topic."""
    admin = admin_client(pair.east)
    wanted = [ConsumerGroupTopicPartitions(g, [TopicPartition(t, 0, offset)]) for g, t in groups.items()]
    for futures in [admin.alter_consumer_group_offsets([one]) for one in wanted]:
        for future in futures.values():
            future.result(TIMEOUT_S)


@contextmanager
def granted(pair: Pair, groups: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile the application may write the topics and use the groups."""
    wanted = [(Resource.TOPIC, topic, Operation.WRITE) for topic in groups.values()]
    wanted += [(Resource.GROUP, group, Operation.READ) for group in groups]
    acls = [Acl(resource=r, name=n, principal="User:application", operation=o) for r, n, o in wanted]
    with ClusterClient(load_config(pair.sandbox.dir.parent / "mirrorbook.yaml").cluster("east")) as east:
        create_acls(east, acls)
        try:
            yield
        finally:
            delete_acls(east, acls)

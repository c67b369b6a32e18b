"""Synced groups, shared by tests."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import NewTopic

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.names import Offset, Partition
from mirror_core.model.sync_state import SyncCategory
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.sync.mirror_sync import sync_mirror
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.links import new_link, record, writer_of
from tests.support.group_commits import commit_offsets
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client, new_topic, produce
from tests.support.waiting import wait_until


@pytest.fixture
def group() -> str:
    return "g-" + secrets.token_hex(4)


@pytest.fixture
def topic(pair: Pair) -> str:
    return new_topic(pair.east)


@pytest.fixture
def link(pair: Pair, topic: str, group: str) -> MirrorLink:
    """A mirror of one topic and one group, ten records on the source, the first six copied."""
    made = new_link(pair, topic, groups=(group,))
    with writer_of(made) as writer:
        sync_mirror(made, writer, only=frozenset({SyncCategory.TOPICS}))
    record(made, [topic])
    produce(pair.east, topic, 10)
    produce(pair.west, topic, 6)
    return made


def commit(link: MirrorLink, side: str, group: str, topic: str, offset: int, metadata: str = "") -> None:
    """As an administrator's tool does it: without a leader epoch."""
    with ClusterClient(link.source if side == "source" else link.destination) as client:
        assert commit_offsets(client, group, {Partition(topic, 0): (Offset(offset), metadata)}) == {}


@contextmanager
def consumer(cluster: SandboxCluster, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A member of the group that has read at least one record."""
    config = {
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": protocol,
    }
    member = Consumer({**cluster.client_config("admin"), **config, "log_level": 0})
    try:
        member.subscribe([topic])
        wait_until(lambda: member.poll(0.2), timeout_s=60, why=f"{group} gets a record of {topic}")
        yield member
    finally:
        member.close()


def made_anew(pair: Pair, topic: str, partitions: int, records: int) -> None:
    """Delete it on the source, and create another one of its name."""
    admin = admin_client(pair.east)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)

    def created() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result(TIMEOUT_S)
        except KafkaException:  # the old one is not gone everywhere yet
            return False
        return True

    wait_until(created, timeout_s=60, why=f"{topic} is made anew")
    produce(pair.east, topic, records)

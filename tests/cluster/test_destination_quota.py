"""A destination that limits by a quota what the mirror may write: no broker there counts as one that hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kio.schema.alter_client_quotas.v0.request import AlterClientQuotasRequest, EntityData, EntryData, OpData
from kio.schema.alter_client_quotas.v0.response import AlterClientQuotasResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from mirror_core.dataplane.driver import Replication, ReplicationOptions
from mirror_core.dataplane.epoch_results import raise_if_failed
from mirror_core.dataplane.task_runner import LocalRunner
from mirror_core.kafka.config import Principal
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, read_all
from tests.support.mirrored_topics import new_mirror

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
RATE = 400_000.0
"""Bytes per second. Brokers count those of ten seconds, and rest for about as long when they got too many at once."""
RECORDS, SIZE = 2_400, 10_000


@contextmanager
def quota(cluster: SandboxCluster, user: str) -> Iterator[None]:
    """On what this user may write."""

    def alter(*, remove: bool) -> None:
        entry = EntryData(
            entity=(EntityData(entity_type="user", entity_name=user),),
            ops=(OpData(key="producer_byte_rate", value=f64(RATE), remove=remove),),
        )
        with as_admin(cluster) as client:
            request = AlterClientQuotasRequest(entries=(entry,), validate_only=False)
            [said] = client.call_controller(request, AlterClientQuotasResponse).entries
        assert said.error_code is ErrorCode.none, said

    alter(remove=False)
    try:
        yield
    finally:
        alter(remove=True)


def test_a_destination_with_a_quota_gets_everything_once_in_its_own_time(pair: Pair, tmp_path: Path) -> None:
    topic = new_topic(pair.east)
    producer = Producer({**pair.east.client_config("admin"), "batch.size": 65_536, "linger.ms": 20})
    for number in range(RECORDS):
        producer.produce(topic, key=str(number), value=bytes(SIZE))
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    mirrored, said = new_mirror(pair, tmp_path, topic), list[str]()
    user = mirrored.link.destination.user(Principal.DATA)
    assert user is not None
    with quota(pair.west, user):
        options = ReplicationOptions(until_caught_up=True)
        made = Replication(mirrored.link, LocalRunner, options, stop=threading.Event(), report_line=said.append)
        raise_if_failed(made.run())
    assert read_all(pair.west, topic) == read_all(pair.east, topic)
    assert not [line for line in said if "no answer to a Produce" in line or "connection lost" in line]
    assert [line for line in said if "a quota limits" in line], said

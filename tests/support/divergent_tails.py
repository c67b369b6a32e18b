"""Topics with a divergent tail on three nodes, and failbacks that truncate it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from confluent_kafka import Producer

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers, list_offsets, list_replica_ends
from mirror_core.kafka.reassignment import (
    FOLLOWER_THROTTLE,
    LEADER_THROTTLE,
    claim_in_sync,
    describe_placements,
    fetch_throttle_rate,
)
from mirror_core.kafka.topics import describe_configs
from mirror_core.model.names import Partition
from mirror_core.runbook.failback_conductor import Failback
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.failover_runs import app_topic, begin
from tests.support.gap_logs import transactional
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, produce, read_all
from tests.support.log_shapes import Row, new_producer, send
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

BATCH = 16_000
ANY_LEADER_EPOCH = -1


def plain(east: SandboxCluster, topic: str, size: int) -> None:
    send(new_producer(east, batch_size=str(BATCH)), topic, [Row(value=os.urandom(4000)) for _ in range(size // 4000)])


def in_transactions(east: SandboxCluster, topic: str, size: int, *, overlapping: bool = False) -> None:
    """Of some 40 kB each, in batches and a marker; `overlapping`: one begins before the one before has ended."""
    producers = [transactional(east, batch_size=str(BATCH), linger_ms="50") for _ in range(1 + overlapping)]
    before: Producer | None = None
    for producer in itertools.islice(itertools.cycle(producers), size // 40_000):
        producer.begin_transaction()
        for _ in range(10):
            producer.produce(topic, os.urandom(4000))
        assert producer.flush(TIMEOUT_S) == 0
        if not overlapping:
            producer.commit_transaction(TIMEOUT_S)
        elif before is not None:
            before.commit_transaction(TIMEOUT_S)
        before = producer
    if overlapping and before is not None:
        before.commit_transaction(TIMEOUT_S)


def half_in_transactions(east: SandboxCluster, topic: str, size: int) -> None:
    """Of some 600 kB each, and as much between them: fetches of 1 MiB end within one about every other time."""
    producer, beside = transactional(east, batch_size=str(BATCH), linger_ms="50"), new_producer(east)
    for _ in range(size // 1_200_000):
        send(beside, topic, [Row(value=os.urandom(4000)) for _ in range(150)])
        producer.begin_transaction()
        for _ in range(150):
            producer.produce(topic, os.urandom(4000))
        producer.commit_transaction(TIMEOUT_S)


def with_a_tail(
    three: Pair,
    evidence: Path,
    size: int,
    fill: Callable[[SandboxCluster, str, int], None] = plain,
    *,
    min_insync_replicas: str = "1",
    unclean_leader_election_enable: str = "false",
) -> tuple[Mirrored, str, list[Record]]:
    """A topic of so many bytes that was failed over, and has a tail of 2 MiB on the old source; what west has."""
    topic = app_topic(
        three,
        retention_ms="-1",
        min_insync_replicas=min_insync_replicas,
        unclean_leader_election_enable=unclean_leader_election_enable,
    )
    fill(three.east, topic, size)
    mirrored = new_mirror(three, evidence, topic)
    mirrored.copy()
    mirrored.failover.drive(begin(mirrored.failover))
    send(new_producer(three.east), topic, [Row(value=os.urandom(4000)) for _ in range(500)])
    produce(three.west, topic, 20)
    return mirrored, topic, read_all(three.west, topic)


def conducted(mirrored: Mirrored, print_line: Callable[[str], None]) -> Failback:
    return Failback(mirrored.link, mirrored.services, started_by="test", print_line=print_line)


def nothing_left(mirrored: Mirrored, topic: str) -> None:
    with ClusterClient(mirrored.config.cluster("east")) as client:
        assert not {LEADER_THROTTLE, FOLLOWER_THROTTLE} & describe_configs(client, [topic])[topic].overrides.keys()
        assert {fetch_throttle_rate(client, node) for node in client.brokers()} == {None}


def in_sync(mirrored: Mirrored, topic: str, replicas: int) -> bool:
    with ClusterClient(mirrored.config.cluster("east")) as client:
        return len(describe_placements(client, [topic])[Partition(topic, 0)].in_sync) == replicas


def three_again(mirrored: Mirrored, topic: str) -> None:
    wait_until(partial(in_sync, mirrored, topic, 3), timeout_s=60, why="three replicas are in sync again")


def has_open_transaction(client: ClusterClient, partition: Partition, broker: int | None = None) -> bool:
    """On its leader, or on this broker's replica."""
    states = describe_producers(client, [partition], broker)
    return any(producer.open_transaction_start >= 0 for producer in states[partition])


def creep_into_a_transaction(client: ClusterClient, partition: Partition) -> int:
    """Lets the replica that is to lead fetch on until it ends within a transaction, and claims it in sync."""
    placement = describe_placements(client, [partition.topic])[partition]
    follower = placement.replicas[0]
    while not has_open_transaction(client, partition, follower):
        end = list_replica_ends(client, follower, [partition])
        wait_until(  # throttled as it is, it fetches once in ten seconds
            lambda end=end: list_replica_ends(client, follower, [partition]) != end,  # type: ignore[misc]
            timeout_s=TIMEOUT_S,
            why=f"broker {follower} fetches",
        )
    ends = list_offsets(client, [partition], OffsetPoint.LOG_END)
    claim_in_sync(client, placement.leader, follower, ends, {partition: ANY_LEADER_EPOCH})
    wait_until(
        lambda: follower in describe_placements(client, [partition.topic])[partition].in_sync,
        timeout_s=TIMEOUT_S,
        why=f"broker {follower} is in sync",
    )
    return follower

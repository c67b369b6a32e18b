"""What tests do to a broker. When it is undone they wait until the broker serves: the next statement may need it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec
from fastcrc import crc32

from mirror_core.model.names import Partition
from mirror_core.state.state_records import STATE_TOPIC
from mirror_core.wire.batch import split_batches
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.cluster_admin import as_admin, undecided
from tests.support.kafka_clients import TIMEOUT_S, admin_client
from tests.support.waiting import wait_until

PROBE_S: Final = 5.0
LOG_END: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]

Harm = Callable[[SandboxCluster], AbstractContextManager[None]]


@contextmanager
def killed(cluster: SandboxCluster, node: int = 1) -> Iterator[None]:
    """SIGKILL; started again on its data.

    A lone broker that has a marker to write when it starts drops it, if its old session still lasts then (KAFKA-20734):
    the transaction would hang for good, and hide what all later tests write.
    """
    if len(cluster.nodes()) == 1:
        wait_until(partial(_decided, cluster), timeout_s=TIMEOUT_S, why=f"{cluster.name} has written its markers")
    cluster.kill(node)
    try:
        yield
    finally:
        cluster.start(node)
        await_service(cluster, node)


@contextmanager
def suspended(cluster: SandboxCluster, node: int = 1) -> Iterator[None]:
    """SIGSTOP; continued."""
    try:
        with woken_at_once(cluster, node):
            yield
    finally:
        await_service(cluster, node)


@contextmanager
def woken_at_once(cluster: SandboxCluster, node: int = 1) -> Iterator[None]:
    """As `suspended`, but nobody waits: the controller may still fence the node, and then its partitions have no leader
    for a moment."""
    cluster.stop_process(node)
    try:
        yield
    finally:
        cluster.cont_process(node)


@contextmanager
def damaged(cluster: SandboxCluster, partition: Partition, text: bytes) -> Iterator[None]:
    """A bit of this text, where the log holds it last, is another one: a disk that rots. The broker serves from the
    same pages, and doesn't look at checksums."""
    log = max((cluster.log_dir() / str(partition)).glob("*.log"))
    at = log.read_bytes().rindex(text)
    with log.open("r+b", buffering=0) as file:
        file.seek(at)
        file.write(bytes([text[0] ^ 1]))
        try:
            yield
        finally:
            file.seek(at)
            file.write(text[:1])


def alter(cluster: SandboxCluster, partition: Partition, offset: int, change: Callable[[memoryview], None]) -> None:
    """Change the batch of format 2 that holds this offset where it lies, of the same length and with a CRC that fits:
    the running broker gives it to whoever reads, and notices nothing."""
    for path in sorted((cluster.log_dir() / str(partition)).glob("*.log")):
        at = 0
        for header, batch in split_batches(memoryview(bytearray(path.read_bytes()))):
            if header.base_offset <= offset < header.next_offset:
                change(batch)
                struct.pack_into(">I", batch, 17, crc32.iscsi(batch[21:]))
                with path.open("r+b") as log:
                    log.seek(at)
                    log.write(batch)
                return
            at += len(batch)
    raise AssertionError(f"{cluster.name} holds no offset {offset} of {partition}")


def in_place_of(old: bytes, new: bytes) -> Callable[[memoryview], None]:
    """These bytes, which an uncompressed batch holds once, are others."""

    def change(batch: memoryview) -> None:
        before, _, behind = bytes(batch).partition(old)
        batch[:] = before + new + behind

    return change


def later_by_one_ms(batch: memoryview) -> None:
    """All times of a batch, however it is compressed: they count from the base timestamp."""
    for at in (27, 35):
        (time_ms,) = struct.unpack_from(">q", batch, at)
        struct.pack_into(">q", batch, at, time_ms + 1)


def _decided(cluster: SandboxCluster) -> bool:
    with as_admin(cluster) as client:
        return STATE_TOPIC not in client.metadata([STATE_TOPIC]).topics or not undecided(
            client, [Partition(STATE_TOPIC, 0)]
        )


def await_service(cluster: SandboxCluster, node: int = 1) -> None:
    """Wait until the node is not fenced, and what it holds in sync is led and can be asked for."""
    wait_until(partial(_serves, cluster, node), timeout_s=TIMEOUT_S, why=f"{cluster.name} node {node} is in service")


def _serves(cluster: SandboxCluster, node: int) -> bool:
    admin, name = admin_client(cluster), "t-of-a-probe"
    try:
        # Asked first: a controller that was suspended ends expired sessions before it answers anything, and says that a
        # fenced node can hold no topic. Metadata alone may still show what was so before.
        probe = NewTopic(name, 1, replica_assignment=[[node]])
        admin.create_topics([probe], validate_only=True, request_timeout=PROBE_S)[name].result(TIMEOUT_S)
        topics = admin.list_topics(timeout=PROBE_S).topics
        held = [
            (TopicPartition(topic, number), partition.leader)
            for topic, known in topics.items()
            for number, partition in known.partitions.items()
            if node in partition.isrs
        ]
        if any(leader < 0 for _, leader in held):
            return False
        led = {partition: LOG_END for partition, leader in held if leader == node}
        if led:
            for found in admin.list_offsets(led, request_timeout=PROBE_S).values():
                found.result(TIMEOUT_S)
    except KafkaException:
        return False
    return True

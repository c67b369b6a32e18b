"""A real MirrorMaker 2 from Kafka's own jars, from east to west, and applications of both clusters beside it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from mirrorbook_tools.sandbox.broker import java_command
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.kafka_clients import TIMEOUT_S, Pair
from tests.support.waiting import patience, wait_until

MAIN: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
STOP_S: Final = patience(60.0)
PATIENCE_S: Final = patience(180.0)
COMMON: Final[Mapping[str, str]] = {
    "clusters": "east, west",
    "east->west.enabled": "true",
    "west->east.enabled": "false",
    "east->west.topics": "orders.*",
    "east->west.groups": ".*",
    "sync.topic.acls.enabled": "false",
    "sync.group.offsets.enabled": "true",
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "offset.flush.interval.ms": "2000",
}
"""As it comes, with the default names; but looking every second, on clusters of one node."""


def write_properties(pair: Pair, path: Path, changes: Mapping[str, str]) -> None:
    properties = {**COMMON, **changes}
    for cluster in (pair.east, pair.west):
        admin = cluster.client_config("admin")
        properties |= {
            f"{cluster.name}.bootstrap.servers": cluster.bootstrap,
            f"{cluster.name}.security.protocol": admin["security.protocol"],
            f"{cluster.name}.sasl.mechanism": admin["sasl.mechanism"],
            f"{cluster.name}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="admin" password="{admin["sasl.password"]}";'
            ),
        }
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="latin-1") as file:
        file.writelines(f"{key} = {value}\n" for key, value in properties.items())


class MirrorMaker:
    """One process; started again, it goes on, and repeats what it had not noted down."""

    def __init__(self, pair: Pair, properties: Path, log: Path) -> None:
        self._command = java_command(pair.east.brokers[0].jars, "512m", MAIN, str(properties))
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_S)

    def wait_for(self, condition: Callable[[], bool], why: str) -> None:
        """Fails when it ends by itself."""

        def is_met() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8", errors="replace")[-4000:]
            return condition()

        wait_until(is_met, timeout_s=PATIENCE_S, why=why)


@contextmanager
def mirror_maker(pair: Pair, properties: Path, log: Path) -> Iterator[MirrorMaker]:
    running = MirrorMaker(pair, properties, log)
    try:
        running.start()
        yield running
    finally:
        running.kill()


@dataclass
class Shop:
    """Writes orders, each with a number of its own: every fourth transaction is aborted, so offsets have gaps."""

    cluster: SandboxCluster
    topic: str
    partitions: int
    acknowledged: set[bytes] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def open(self) -> Iterator[None]:
        with beside(self._write, self._stop.set, timeout_s=TIMEOUT_S):
            yield
            self._stop.set()

    def _write(self) -> None:
        producer = Producer({**self.cluster.client_config("admin"), "transactional.id": f"shop-{self.topic}"})
        producer.init_transactions(TIMEOUT_S)
        number = transactions = 0
        while not self._stop.wait(0.02):
            delivered = set[bytes]()

            def note(error: KafkaError | None, message: Message, delivered: set[bytes] = delivered) -> None:
                value = message.value()
                assert error is None, error
                assert value is not None
                delivered.add(value)

            producer.begin_transaction()
            transactions += 1
            is_aborted = transactions % 4 == 0
            for partition in range(self.partitions):
                for _ in range(1 + partition):
                    number += 1
                    value = b"%s %d" % (b"aborted" if is_aborted else b"order", number)
                    producer.produce(
                        self.topic, value, key=b"k%d" % (number % 7), partition=partition, on_delivery=note
                    )
            assert producer.flush(TIMEOUT_S) == 0
            if is_aborted:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
                self.acknowledged |= delivered


@dataclass
class Reader:
    """A group with one member, which commits what it has handled, and once more before it leaves."""

    cluster: SandboxCluster
    group: str
    handled: dict[str, Counter[bytes]] = field(default_factory=dict)
    """By topic."""
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def reading(self, topic: str, at_most: int | None = None) -> Iterator[None]:
        """`at_most`: records of each partition; it reads no further."""
        self._stop.clear()
        with beside(lambda: self._read(topic, at_most), self._stop.set, timeout_s=TIMEOUT_S):
            yield
            self._stop.set()

    def count(self, topic: str) -> int:
        return self.handled[topic].total() if topic in self.handled else 0

    def _read(self, topic: str, at_most: int | None) -> None:
        handled = self.handled.setdefault(topic, Counter())
        settings = {"group.id": self.group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**self.cluster.client_config("admin"), **settings, "log_level": 0})
        consumer.subscribe([topic])
        read, positions = Counter[int](), dict[int, int]()
        try:
            while not self._stop.is_set():
                for message in consumer.consume(50, 0.1):
                    assert message.error() is None, message.error()
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None
                    assert offset is not None
                    assert value is not None
                    if at_most is not None and read[partition] >= at_most:
                        continue
                    read[partition] += 1
                    handled[value] += 1
                    positions[partition] = offset + 1
                if positions:
                    wanted = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
                    consumer.commit(offsets=wanted, asynchronous=False)
        finally:
            consumer.close()

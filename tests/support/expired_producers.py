"""Expired producers, shared by tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from confluent_kafka import Producer

from mirror_core.copy import log_inspection
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.connection import Connection
from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.names import Partition
from mirror_core.wire.records import Record as LogRecord
from tests.support.cluster_admin import as_admin, broker_setting
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic
from tests.support.mirrored_topics import Mirrored
from tests.support.waiting import wait_until

OLD_MS = 1_577_836_800_000
"""2020."""


class Application:
    """Writes records of 2020 into partitions of one source topic."""

    def __init__(self, pair: Pair, partitions: int) -> None:
        self.topic = new_topic(pair.east, partitions, retention_ms="-1")
        self.partitions = [Partition(self.topic, number) for number in range(partitions)]
        self._settings = {**pair.east.client_config("admin"), "linger.ms": 1000}
        self._count = 0

    def plain(self, partitions: Iterable[int], count: int = 20) -> None:
        self._write(Producer(self._settings), partitions, count)

    def transact(self, partitions: Iterable[int], count: int = 20, *, commit: bool = True) -> None:
        producer = Producer({**self._settings, "transactional.id": f"t-{self.topic}"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        self._write(producer, partitions, count)
        (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)

    def abort(self, partitions: Iterable[int], count: int = 20) -> None:
        self.transact(partitions, count, commit=False)

    def _write(self, producer: Producer, partitions: Iterable[int], count: int) -> None:
        for partition in partitions:
            for _ in range(count):
                value, when = b"%d" % self._count, OLD_MS + self._count
                producer.produce(self.topic, key=value, value=value, partition=partition, timestamp=when)
                self._count += 1
        assert producer.flush(TIMEOUT_S) == 0


def forgotten(mirrored: Mirrored, partitions: Sequence[Partition]) -> None:
    """Also those who wrote a marker last: markers carry the time of copying."""
    west = mirrored.pair.west
    with as_admin(west) as client, broker_setting(west, "producer.id.expiration.ms", "1"):
        wait_until(
            lambda: not any(describe_producers(client, partitions).values()),
            timeout_s=TIMEOUT_S,
            why="the destination forgets who wrote",
        )


def caught_up(mirrored: Mirrored, partitions: Sequence[Partition]) -> None:
    with ClusterClient(mirrored.link.source) as source, ClusterClient(mirrored.link.destination) as destination:

        def left() -> list[Partition]:
            ends = list_offsets(source, partitions, OffsetPoint.STABLE_END)
            positions = list_offsets(destination, partitions, OffsetPoint.LOG_END)
            return [p for p in partitions if positions[p] < ends[p]]

        wait_until(lambda: not left(), timeout_s=TIMEOUT_S, why=f"all is copied, also {left()}")


class Looked:
    """Into logs, by a task of this process: which partitions' ends, and by how many connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: list[Partition] = []
        self.by = set[Connection]()
        look, connect = log_inspection.read_last_record, LogReader.leader_connection

        def last_record(reader: LogReader, partition: Partition, start: int, end: int) -> LogRecord | None:
            self.at.append(partition)
            return look(reader, partition, start, end)

        def connection(reader: LogReader, partition: Partition) -> Connection:
            self.by.add(found := connect(reader, partition))
            return found

        monkeypatch.setattr(log_inspection, "read_last_record", last_record)
        monkeypatch.setattr(LogReader, "leader_connection", connection)

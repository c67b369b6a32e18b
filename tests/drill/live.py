"""Applications that write without end, never told of anything: what they were acknowledged, by its place in the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from mirror_core.decide.fence_state import find_late_ranges
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.checked_threads import beside
from tests.support.kafka_clients import Record, grant, read_topics, read_topics_aiokafka
from tests.support.mirrored_topics import Mirrored

CALL_S = 5.0
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "linger.ms": 2, "log_level": 0}
REFUSED = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})

Place = tuple[Partition, Offset]


class Kind(StrEnum):
    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


@dataclass
class Application:
    """One of them, in a thread of its own. `acked`: of a transaction, what its commit was acknowledged for."""

    cluster: SandboxCluster
    kind: Kind
    partitions: Sequence[Partition]
    acked: dict[Place, bytes] = field(default_factory=dict)
    refused: int = 0
    _count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def transactional_id(self) -> str:
        return f"tx-{self.partitions[0].topic}"

    def run(self) -> None:
        if self.kind is Kind.TRANSACTIONAL:
            self._in_transactions()
        else:
            self._by_itself()

    def stop(self) -> None:
        self._stop.set()

    def _by_itself(self) -> None:
        # What a dead broker does not take is given up after a while: the rest goes on.
        safe = self.kind is Kind.IDEMPOTENT
        producer = self._producer({"enable.idempotence": safe, "acks": "all", "message.timeout.ms": 5000})
        while not self._stop.is_set():
            try:
                if len(producer) < 100:
                    self._send(producer, self.acked)
            except KafkaException:  # librdkafka knows for a while that it may not
                self._stop.wait(0.02)
            producer.poll(0.01)
        producer.purge()
        producer.flush(CALL_S)

    def _in_transactions(self) -> None:
        while not self._stop.is_set():
            producer = self._producer({"transactional.id": self.transactional_id, "transaction.timeout.ms": 10_000})
            try:
                producer.init_transactions(CALL_S)
                while not self._stop.is_set():
                    self._transact(producer)
            except KafkaException as failed:
                self.refused += failed.args[0].code() in REFUSED
                self._stop.wait(0.1)

    def _transact(self, producer: Producer) -> None:
        told = dict[Place, bytes]()
        producer.begin_transaction()
        for _ in range(3):
            self._send(producer, told)
        while not self._stop.is_set():
            try:
                producer.commit_transaction(CALL_S)
            except KafkaException as failed:
                error: KafkaError = failed.args[0]
                if error.retriable():
                    continue
                if not error.txn_requires_abort():
                    raise
                self.refused += error.code() in REFUSED
                producer.abort_transaction(CALL_S)
                return
            self.acked.update(told)
            return

    def _send(self, producer: Producer, told: dict[Place, bytes]) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            index, offset, value = message.partition(), message.offset(), message.value()
            if error is None and index is not None and offset is not None and offset >= 0 and value is not None:
                told[Partition(message.topic() or "", index), Offset(offset)] = value
            elif error is not None and error.code() in REFUSED:
                self.refused += 1

        for partition in self.partitions:
            self._count += 1
            value = f"{self.kind} {self._count}".encode()
            producer.produce(partition.topic, value, partition=partition.index, on_delivery=delivered)

    def _producer(self, more: dict[str, str | int | bool]) -> Producer:
        return Producer({**self.cluster.client_config("app"), **QUICK, **more})


@contextmanager
def living(cluster: SandboxCluster, *applications: Application) -> Iterator[None]:
    """They write while this lasts."""
    for one in applications:
        if one.kind is Kind.TRANSACTIONAL:
            grant(cluster, "app", ResourceType.TRANSACTIONAL_ID, one.transactional_id, [AclOperation.WRITE])
    with ExitStack() as ended:
        for one in applications:
            ended.enter_context(beside(one.run, one.stop, name=f"{one.kind} application"))
        for one in applications:
            ended.callback(one.stop)
        yield


def nothing_lost_unnamed(mirrored: Mirrored, applications: Sequence[Application]) -> int:
    """Below the promoted ends the destination holds what the source does, and whatever was acknowledged there is on the
    destination, or named: as slipped in, or of a partition whose promoted end is not known. How many were named.

    Nothing may have been written on the destination yet.
    """
    topics = sorted({p.topic for one in applications for p in one.partitions})
    ends = {p: status.lmo for p, status in mirrored.statuses.items()}
    slipped = find_late_ranges(mirrored.state.pending_fences[mirrored.name], mirrored.statuses)
    copy, again = (reader(mirrored.pair.west, topics) for reader in (read_topics, read_topics_aiokafka))
    source = read_topics(mirrored.pair.east, topics)
    for topic in topics:
        assert copy[topic] == again[topic]
        assert copy[topic] == [r for r in source[topic] if _within(r, ends[Partition(topic, r.partition)], copy[topic])]
    held = {(Partition(t, r.partition), Offset(r.offset)): r.value for t in topics for r in copy[t]}
    named = 0
    for one in applications:
        for (partition, offset), value in one.acked.items():
            if held.get((partition, offset)) == value:
                continue
            end, (first, last) = ends[partition], slipped.get(partition, (0, 0))
            assert end is None or first <= offset < last, f"{one.kind}: {partition} offset {offset} is lost and unnamed"
            named += 1
    return named


def _within(record: Record, end: Offset | None, copy: Sequence[Record]) -> bool:
    """Below the promoted end; where that is not known, below what the copy holds."""
    if end is None:
        end = Offset(max((r.offset for r in copy if r.partition == record.partition), default=-1) + 1)
    return record.offset < end

"""Producers of three kinds at work on several topics, and what was acknowledged to each of them: where, and when."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.applications import Login
from tests.drill.live import REFUSED, Kind
from tests.support.checked_threads import Work
from tests.support.kafka_clients import TIMEOUT_S
from tests.support.waiting import patience, wait_until

SOME: Final = 300
PATIENCE_S: Final = patience(120.0)
RECORDS: Final = 10
PAUSE_S: Final = 0.05
"""So many records every so often, to each topic."""
ANSWER_S: Final = 1.0
TRANSACTION_MS: Final = 10_000
"""A transaction whose producer is gone is aborted after this."""


@dataclass(frozen=True, slots=True)
class Acked:
    """One record that a cluster has promised to keep; one of a transaction when that was committed."""

    cluster: str
    topic: str
    partition: int
    offset: int
    value: bytes
    at: float


class Load:
    """Writes without end on the cluster that it is told, until it is stopped or denied there; each value once.

    A transaction spans all topics and partitions.
    """

    def __init__(self, user: Login, kind: Kind, partitions: int, pause_s: float = PAUSE_S) -> None:
        self.acked: list[Acked] = []
        self.rounds = 0
        self.topics: Sequence[str] = ()
        self._user, self._kind, self._partitions, self._pause_s = user, kind, partitions, pause_s
        self._numbers = itertools.count()
        self._stop, self._dead = threading.Event(), threading.Event()
        self._refused, self._errors = threading.Event(), list[KafkaError]()
        self._round: list[Acked] = []
        self._thread: Work[None] | None = None

    def start(self, cluster: SandboxCluster, topics: Sequence[str]) -> None:
        assert self._thread is None, "it writes on another cluster"
        self.topics = topics
        for event in (self._stop, self._dead, self._refused):
            event.clear()
        self._thread = Work(partial(self._write, cluster), f"{self._kind} load").start()

    def works(self, before: int) -> None:
        """Until it has written some more than so many."""
        why = f"{SOME} {self._kind} records more are acknowledged"

        def done() -> bool:
            assert self._thread is not None
            assert self._thread.alive, (self._kind, self._refused.is_set(), self._errors)
            return len(self.acked) > before + SOME

        wait_until(done, timeout_s=PATIENCE_S, why=why)

    def spare(self, topic: str) -> None:
        """Write there no more; returns when the last round that did is over."""
        self.topics = [name for name in self.topics if name != topic]
        before = self.rounds
        wait_until(lambda: self.rounds > before + 1, timeout_s=PATIENCE_S, why=f"nobody writes to {topic}")

    def stop(self) -> None:
        """Returns when the last round is acknowledged or refused."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)  # else there are records of which nobody says what became of them
        self._thread = None
        assert not self._errors, (self._kind, self._errors)

    def abandon(self) -> None:
        """Its cluster is dead: nobody will ever say what became of its last round."""
        self._dead.set()
        self.stop()

    def denied(self) -> None:
        """Wait until the cluster lets it write no more."""
        assert self._thread is not None
        self._thread.join(TIMEOUT_S)  # else it still writes, fence or not
        assert self._refused.is_set()
        self.stop()

    def _write(self, cluster: SandboxCluster) -> None:
        settings: dict[str, str | int | bool] = {
            "enable.idempotence": self._kind is not Kind.PLAIN,
            "linger.ms": 5,
            "log_level": 0,
        }
        if self._kind is Kind.TRANSACTIONAL:
            settings |= {"transactional.id": f"{self._user.name}-1", "transaction.timeout.ms": TRANSACTION_MS}
        producer = Producer({**self._user.properties(cluster), **settings})
        try:
            if self._kind is Kind.TRANSACTIONAL:
                self._answered(producer.init_transactions)
            while not self._over():
                self._send(producer, cluster)
                self.rounds += 1
                self._stop.wait(self._pause_s)
        except KafkaException as error:
            self._failed(error.args[0])
            if self._kind is Kind.TRANSACTIONAL and not self._dead.is_set():
                with suppress(KafkaException):  # a fence may deny that, too: then its coordinator aborts it
                    producer.abort_transaction(TIMEOUT_S)
        with suppress(KafkaException):  # it has failed for good
            producer.purge()
            producer.flush(ANSWER_S)

    def _over(self) -> bool:
        return self._stop.is_set() or self._refused.is_set() or self._dead.is_set()

    def _send(self, producer: Producer, cluster: SandboxCluster) -> None:
        """One round, to its end."""
        self._round = []
        if self._kind is Kind.TRANSACTIONAL:
            producer.begin_transaction()
        for topic, number in itertools.product(self.topics, range(RECORDS)):
            value, told = f"{self._kind}-{next(self._numbers)}".encode(), partial(self._told, cluster.name)
            producer.produce(topic, value, value, partition=number % self._partitions, on_delivery=told)
        if self._kind is Kind.TRANSACTIONAL:
            self._answered(producer.commit_transaction)
            self.acked += [replace(record, at=time.time()) for record in self._round]
        while producer.flush(ANSWER_S) and not self._dead.is_set():
            continue

    def _answered(self, ask: Callable[[float], object]) -> None:
        """A cluster may die while it is asked."""
        while True:
            try:
                ask(ANSWER_S)
            except KafkaException as error:
                if self._dead.is_set() or not error.args[0].retriable():
                    raise
            else:
                return

    def _told(self, cluster: str, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            if self._kind is not Kind.TRANSACTIONAL or error.code() in REFUSED:  # else its end tells
                self._failed(error)
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        known = self._round if self._kind is Kind.TRANSACTIONAL else self.acked
        known.append(Acked(cluster, topic, partition, offset, message.value() or b"", time.time()))

    def _failed(self, error: KafkaError) -> None:
        if error.code() in REFUSED:
            self._refused.set()
        elif not (self._dead.is_set() or self._refused.is_set()):
            self._errors.append(error)

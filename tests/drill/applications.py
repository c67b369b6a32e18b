"""Applications that move between two clusters with nothing but another address: who they are, and what they are fed."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from mirror_core.model.run import RunMode, RunState
from mirror_core.runbook.failback_conductor import Failback
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from mirrorbook_tools.sandbox.credentials import scram_config
from mirrorbook_tools.sandbox.properties import SCRAM_LOGIN
from tests.support.checked_threads import Work
from tests.support.kafka_clients import TIMEOUT_S, Pair, Record, forget_user, new_user
from tests.support.mirrored_topics import Mirrored

VOCABULARY: Final = tuple(f"w{number}" for number in range(30))
LINES: Final = 10
PAUSE_S: Final = 0.1
"""So many lines every so often."""


@dataclass(frozen=True, slots=True)
class Login:
    """One user whom both clusters know by the same password."""

    name: str
    password: str = field(repr=False)

    def properties(self, cluster: SandboxCluster) -> dict[str, str]:
        """For librdkafka."""
        return scram_config(cluster.bootstrap, self.name, self.password)

    def java(self, cluster: SandboxCluster) -> dict[str, str]:
        """For Kafka's own clients."""
        jaas = f'{SCRAM_LOGIN} required username="{self.name}" password="{self.password}";'
        kept = ("bootstrap.servers", "security.protocol", "sasl.mechanism")
        return {key: self.properties(cluster)[key] for key in kept} | {"sasl.jaas.config": jaas}


@contextmanager
def login(pair: Pair) -> Iterator[Login]:
    """A user without any right."""
    made = Login(*new_user(pair.east, pair.west))
    try:
        yield made
    finally:
        for cluster in (pair.east, pair.west):
            forget_user(cluster, made.name)


class Lines:
    """Writes lines of words without end, on the cluster that it is told, until it is stopped or denied there.

    Each line has a word of its own, which occurs once: a line that is lost, or handled twice, is found by it.
    """

    def __init__(self, user: Login, topic: str, partitions: int) -> None:
        self.acknowledged: list[bytes] = []
        self._user, self._topic, self._partitions = user, topic, partitions
        self._numbers, self._chance = itertools.count(), random.Random(4)
        self._stop, self._dead = threading.Event(), threading.Event()
        self._errors: list[KafkaError] = []
        self._thread: Work[None] | None = None

    def start(self, cluster: SandboxCluster) -> None:
        assert self._thread is None, "it writes on another cluster"
        self._stop.clear()
        self._thread = Work(partial(self._write, cluster), "lines").start()

    def stop(self) -> None:
        """Returns when the last line is acknowledged or refused."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)  # else there are lines of which nobody says what became of them
        self._thread = None
        assert not self._errors, self._errors

    def abandon(self) -> None:
        """Its cluster is dead: nobody will ever say what became of its last lines."""
        self._dead.set()
        self.stop()
        self._dead.clear()

    def denied(self) -> None:
        """Wait until the cluster lets it write no more."""
        assert self._thread is not None
        self._thread.join(TIMEOUT_S)  # else it still writes, fence or not
        assert not self._stop.is_set()
        self.stop()

    def _write(self, cluster: SandboxCluster) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        producer, refused = Producer({**self._user.properties(cluster), **settings}), threading.Event()

        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged.append(message.value() or b"")
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                refused.set()
            elif not self._dead.is_set():
                self._errors.append(error)

        try:
            while not refused.is_set() and not self._stop.wait(PAUSE_S):
                for _ in range(LINES):
                    words = [f"n{next(self._numbers)}", *self._chance.choices(VOCABULARY, k=4)]
                    partition = self._chance.randrange(self._partitions)
                    producer.produce(self._topic, " ".join(words).encode(), partition=partition, on_delivery=told)
                producer.poll(0)
        except KafkaException as error:  # an idempotent producer that was denied takes nothing more
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                self._errors.append(error.args[0])
        if self._dead.is_set():
            producer.purge()
        if producer.flush(TIMEOUT_S):
            self._errors.append(KafkaError(KafkaError._TIMED_OUT))


def words(lines: list[Record]) -> Counter[str]:
    """How often each word occurs, as an application should have counted it."""
    return Counter(word for line in lines for word in (line.value or b"").decode().split())


def fail_over(mirrored: Mirrored) -> None:
    """Planned, to its end."""
    failover = mirrored.failover
    run = failover.drive(failover.begin(failover.plan(RunMode.PLANNED).hash).id)
    assert run.state is RunState.DONE


def come_home(mirrored: Mirrored) -> None:
    """The failback, and within it the planned failover of the reverse mirror."""
    failback = Failback(mirrored.link, mirrored.services, started_by="test")
    run = failback.begin(failback.plan().hash).id
    failback.drive(run)
    home = failback.make_reverse_failover()
    assert home.drive(home.begin(home.plan(RunMode.PLANNED).hash).id).state is RunState.DONE
    assert failback.drive(run).state is RunState.DONE

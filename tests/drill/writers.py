"""Applications on the source: plain and transactional producers whose transactions interleave, hang, and end."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Producer

from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.support.kafka_clients import TIMEOUT_S

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS = 40
CALL_S = 20.0
AT_ONCE = 3
"""Transactions open at a time."""


@dataclass
class Writers:
    """Nothing that they are told about outcomes is used: only the source's log says what was committed."""

    cluster: SandboxCluster
    topics: tuple[str, ...]
    partitions: int
    chance: random.Random
    open: list[Producer] = field(default_factory=list)
    run: str = field(default_factory=lambda: secrets.token_hex(3))

    def plain(self) -> None:
        """Some records, in batches of one codec."""
        producer = self._producer({"enable.idempotence": self.chance.random() < 0.5})
        self._send(producer, self.chance.choice((1, 20, 400)))
        producer.flush(CALL_S)

    def transact(self) -> None:
        """Begin, send, and end at once."""
        producer = self._begin()
        if producer is not None:
            self._end(producer)

    def leave_open(self) -> None:
        """Others write and commit behind what this one has begun: the last stable offset stays back."""
        if len(self.open) < AT_ONCE and (producer := self._begin()) is not None:
            self.open.append(producer)

    def end_open(self) -> None:
        if self.open:
            self._end(self.open.pop(self.chance.randrange(len(self.open))))

    def close(self) -> None:
        """End everything, by whatever means: a new producer of the same id aborts what an old one left."""
        while self.open:
            self.end_open()
        for number in range(AT_ONCE + 1):
            self._producer({"transactional.id": f"{self.run}-{number}"}).init_transactions(TIMEOUT_S)

    # -- inside --------------------------------------------------------------------------------------------------

    def _begin(self) -> Producer | None:
        taken = len(self.open)  # an id whose transaction is open is not used again until it has ended
        producer = self._producer({"transactional.id": f"{self.run}-{taken}", "transaction.timeout.ms": 60_000})
        try:
            producer.init_transactions(CALL_S)
            producer.begin_transaction()
            self._send(producer, self.chance.choice((1, 5, 60)))
            producer.flush(CALL_S)
        except KafkaException:
            return None  # a broker is away: a later producer of the same id aborts what this one has begun
        return producer

    def _end(self, producer: Producer) -> None:
        """Commit or abort. When neither is possible the transaction hangs until its id is used again, or times out."""
        try:
            if self.chance.random() < 0.6:
                producer.commit_transaction(CALL_S)
            else:
                producer.abort_transaction(CALL_S)
        except KafkaException as failed:
            error: KafkaError = failed.args[0]
            if error.txn_requires_abort():
                self._abort(producer)

    def _abort(self, producer: Producer) -> None:
        try:
            producer.abort_transaction(CALL_S)
        except KafkaException:
            return  # it hangs, as in life

    def _producer(self, more: dict[str, str | int | bool]) -> Producer:
        common: dict[str, str | int | bool] = {
            "compression.type": self.chance.choice(CODECS),
            "batch.num.messages": self.chance.choice((1, 7, 200)),
            "linger.ms": 5,
            "message.timeout.ms": 20_000,
            "log_level": 0,
        }
        if "transactional.id" in more:
            common.pop("message.timeout.ms")
        return Producer({**self.cluster.client_config("admin"), **common, **more})

    def _send(self, producer: Producer, count: int) -> None:
        topic = self.chance.choice(self.topics)
        for _ in range(count):
            producer.produce(
                topic,
                key=b"k%d" % self.chance.randrange(KEYS),
                value=None if self.chance.random() < 0.05 else self.chance.randbytes(self.chance.choice((0, 30, 900))),
                headers=[("h", self.chance.randbytes(3))],
                partition=self.chance.randrange(self.partitions),
            )
            producer.poll(0)

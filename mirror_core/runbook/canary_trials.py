"""Writes and reads one partition as applications do.

Acknowledgement alone is no proof: brokers have acknowledged and dropped records of a producer whose state they
believed to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from mirror_core.decide.canary import Kind, Outcome, Trial
from mirror_core.decide.view import some
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.librdkafka import QUIET, client
from mirror_core.model.errors import RemoteFault, Unreachable
from mirror_core.model.limits import LIMITS

GROUP_RECORDS: Final = 4
_POLL_S: Final = 0.05
_SESSION_MS: Final = 6_000
"""Kafka's default minimum. A killed member is waited for that long."""
_PATIENCE: Final = {**QUIET, "socket.connection.setup.timeout.ms": 3_000}
"""A hung broker accepts connections and never authenticates: try another one soon."""
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


@dataclass(frozen=True, slots=True)
class Ground:
    config: ClusterConfig
    topic: str
    name: str
    note: str

    def try_broker(self, broker: int, partition: int) -> list[Trial]:
        producers: dict[Kind, Callable[[int, int], None]] = {
            Kind.PLAIN: self._plain,
            Kind.IDEMPOTENT: self._idempotent,
            Kind.TRANSACTIONAL: self._transactional,
        }
        where = f"{self.topic}-{partition}"
        return [self._tried(kind, broker, where, partial(use, broker, partition)) for kind, use in producers.items()]

    def try_group(self, partitions: list[int]) -> Trial:
        """One member reads half, commits and leaves. The next one must continue exactly there."""
        return self._tried(Kind.GROUP, None, self.topic, lambda: self._group(partitions))

    # -- kinds ---------------------------------------------------------------------------------------------------

    def _plain(self, broker: int, partition: int) -> None:
        self._written_and_read(Kind.PLAIN, partition, {"enable.idempotence": False, "acks": "all"})

    def _idempotent(self, broker: int, partition: int) -> None:
        self._written_and_read(Kind.IDEMPOTENT, partition, {"enable.idempotence": True})

    def _written_and_read(self, kind: Kind, partition: int, properties: Mapping[str, object]) -> None:
        value = f"{self.note} {kind}".encode()
        (offset,) = self._write(self._producer(properties), partition, [value])
        self._read(partition, offset, [value])

    def _transactional(self, broker: int, partition: int) -> None:
        """Abort one record, commit another. A read_committed reader must get only the second."""
        aborted, committed = f"{self.note} aborted".encode(), f"{self.note} committed".encode()
        # The state topic's id prefix: no further grant is needed.
        own = {"transactional.id": f"mirrorbook.canary.{self.name}.{broker}"}
        producer = self._producer({**own, "transaction.timeout.ms": int(LIMITS.canary_trial_s * 1000)})
        producer.init_transactions(LIMITS.canary_trial_s)
        producer.begin_transaction()
        (offset,) = self._write(producer, partition, [aborted])
        producer.abort_transaction(LIMITS.canary_trial_s)
        producer.begin_transaction()
        self._write(producer, partition, [committed])
        producer.commit_transaction(LIMITS.canary_trial_s)
        self._read(partition, offset, [committed])

    def _group(self, partitions: list[int]) -> None:
        producer = self._producer({"enable.idempotence": True})
        values = [f"{self.note} group {number}".encode() for number in range(GROUP_RECORDS)]
        offsets = {p: self._write(producer, p, values) for p in partitions}
        starts, halves = ({p: o[n] for p, o in offsets.items()} for n in (0, GROUP_RECORDS // 2))
        ends = {p: o[-1] for p, o in offsets.items()}
        self._member(starts, {p: half - 1 for p, half in halves.items()}, commit=halves)
        first = self._member(None, ends)
        wrong = [
            f"{self.topic}-{p}: committed {half}, read on from {first[p]}"
            for p, half in halves.items()
            if first[p] != half
        ]
        if wrong:
            raise RemoteFault(f"the group did not go on where it had committed: {some(wrong)}")

    # -- parts ---------------------------------------------------------------------------------------------------

    def _tried(self, kind: Kind, broker: int | None, where: str, act: Callable[[], None]) -> Trial:
        started, outcome, reason = time.monotonic(), Outcome.PASSED, ""
        try:
            act()
        except KafkaException as error:
            code: KafkaError = error.args[0]
            if code.code() in _DENIED:
                outcome, reason = Outcome.DENIED, f"{code.name()} for {self.config.user() or 'this principal'}"
            else:
                outcome, reason = Outcome.FAILED, f"{where}: {code.name()}"
        except RemoteFault as error:
            outcome, reason = Outcome.FAILED, str(error)
        return Trial(kind=kind, broker=broker, outcome=outcome, seconds=time.monotonic() - started, reason=reason)

    def _producer(self, properties: Mapping[str, object]) -> Producer:
        limit = {"delivery.timeout.ms": int(LIMITS.canary_trial_s * 1000)}
        return client(Producer, self.config, {**self.config.properties(), **_PATIENCE, **limit, **properties})

    def _write(self, producer: Producer, partition: int, values: list[bytes]) -> list[int]:
        """Returns offsets in order. Raises unless all records are acknowledged."""
        answers: list[int | KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            answers.append(error if error is not None else -1 if offset is None else offset)

        for value in values:
            producer.produce(self.topic, value=value, partition=partition, on_delivery=delivered)
        producer.flush(LIMITS.canary_trial_s)
        refused = [answer for answer in answers if isinstance(answer, KafkaError)]
        if any(answer.code() in _PURGED for answer in refused):
            producer.commit_transaction(LIMITS.canary_trial_s)  # raises the cause, which delivery errors lack
        if refused:
            raise KafkaException(refused[0])
        if len(answers) < len(values):
            raise Unreachable(f"{self.topic}-{partition}: not acknowledged within {LIMITS.canary_trial_s:.0f} s")
        return [answer for answer in answers if isinstance(answer, int)]

    def _read(self, partition: int, offset: int, values: list[bytes]) -> None:
        """Raises unless a read_committed reader gets exactly these values from `offset` on."""
        consumer = self._consumer({"enable.auto.commit": False, "auto.offset.reset": "error"})
        rest, deadline = list(values), time.monotonic() + LIMITS.canary_trial_s
        try:
            consumer.assign([TopicPartition(self.topic, partition, offset)])
            while rest:
                if time.monotonic() > deadline:
                    raise Unreachable(f"{self.topic}-{partition}, offset {offset}: acknowledged, and not to be read")
                for message in _records(consumer):
                    if rest and message.value() != rest[0]:
                        raise RemoteFault(
                            f"{self.topic}-{partition}, offset {message.offset()}: another record was read than the "
                            "one that was acknowledged there"
                        )
                    del rest[:1]
        finally:
            consumer.close()

    def _member(
        self, starts: Mapping[int, int] | None, last: Mapping[int, int], commit: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Join, read up to `target_offsets`, commit, leave. Returns first offsets. `starts` overrides commits."""
        first: dict[int, int] = {}
        seen: dict[int, int] = {}

        def assigned(member: Consumer, partitions: list[TopicPartition]) -> None:
            if starts is not None:
                member.assign([TopicPartition(self.topic, p.partition, starts[p.partition]) for p in partitions])

        member = self._consumer({"enable.auto.commit": False, "auto.offset.reset": "earliest"})
        deadline = time.monotonic() + LIMITS.canary_trial_s
        try:
            member.subscribe([self.topic], on_assign=assigned)
            while any(seen.get(p, -1) < end for p, end in last.items()):
                if time.monotonic() > deadline:
                    late = [f"{self.topic}-{p}" for p, end in last.items() if seen.get(p, -1) < end]
                    raise Unreachable(
                        f"{some(late)}: a group's member could not read it within {LIMITS.canary_trial_s:.0f} s"
                    )
                for message in _records(member):
                    partition, offset = message.partition(), message.offset()
                    if partition is not None and offset is not None:
                        first.setdefault(partition, offset)
                        seen[partition] = offset
            if commit is not None:
                wanted = [TopicPartition(self.topic, p, offset) for p, offset in commit.items()]
                member.commit(offsets=wanted, asynchronous=False)
        finally:
            with suppress(KafkaException):
                member.close()
        return first

    def _consumer(self, properties: dict[str, Any]) -> Consumer:
        own = {
            "group.id": f"mirrorbook-canary-{self.name}",
            "isolation.level": "read_committed",
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": _SESSION_MS // 3,
            "fetch.wait.max.ms": 50,
        }
        return client(Consumer, self.config, {**self.config.properties(), **_PATIENCE, **own, **properties})


def _records(consumer: Consumer) -> Iterator[Message]:
    for message in consumer.consume(100, _POLL_S):
        error = message.error()
        if error is None:
            yield message
        elif error.code() in _DENIED:
            raise KafkaException(error)

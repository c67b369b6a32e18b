"""The state topic: read by anyone who may, written by one owner of a transactional id at a time.

`init_transactions` on a fixed transactional.id fences whoever held it before; the old owner learns of it at its next
write. So intent is written before every action that others could notice, and a write is always a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.faults import ErrorCode, fault
from mirror_core.model.errors import BadRequest, LostOwnership, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName
from mirror_core.state.records import TOPIC, Forget, Record, State

_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._CONFLICT,  # what librdkafka answers to every call after the fatal one; it says "retriable", wrongly
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_ELECTING: Final = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
Client = TypeVar("Client", Consumer, Producer)

_POLL_S: Final = 0.02
"""consume() waits for the whole number of messages or as long as this."""
_MARKER_S: Final = 1.0
"""How long a reader waits for open transactions to be decided; a killed owner's stay open for longer."""
_TRANSACTION_MS: Final = 10_000
"""Longest life of a transaction, so of one whose owner was killed in the middle of a commit."""
_ABORTED_S: Final = 35.0
"""By then it is aborted: brokers look for timed-out transactions every 10 s by default."""
_LINE_KIB: Final = 8 << 10
"""Of records on their way from or to a broker."""
_QUIET: Final = {"log_level": 0, "error_cb": lambda error: None}  # errors reach us through the calls themselves


@dataclass(frozen=True, slots=True)
class WriterId:
    """Who writes about a mirror. As text it is the transactional id."""

    role: str
    mirror: MirrorName

    def __str__(self) -> str:
        return f"mirrorbook.{self.role}.{self.mirror}"


def control_id(mirror: MirrorName) -> WriterId:
    """The conductor: failover, failback, sync and the verbs of a mirror."""
    return WriterId("control", mirror)


def data_id(mirror: MirrorName) -> WriterId:
    """The data plane's driver."""
    return WriterId("data", mirror)


def read_state(cluster: ClusterConfig, *, timeout_s: float = 10.0, whole: bool = False) -> State:
    """The committed state at this moment; empty when the state topic does not exist.

    Behind the open transaction of a killed owner, committed records of others are hidden until the broker aborts it.
    For a look that is good enough; who is about to act (`whole`) waits for it within the time limit.
    """
    properties = {
        **cluster.properties(),
        **_QUIET,
        "group.id": "mirrorbook-state-reader",  # demanded by librdkafka; nothing is ever committed under it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": _LINE_KIB,
        "fetch.wait.max.ms": 10,  # the end of the topic is told by an empty answer: don't have the broker hold it back
    }
    state = State()
    consumer = _client(Consumer, cluster, properties)
    deadline = time.monotonic() + timeout_s
    try:
        low = _beginning(consumer, deadline)
        consumer.assign([TopicPartition(TOPIC, 0, low)])
        settled = time.monotonic() + _MARKER_S
        at_end = False
        while True:
            for message in consumer.consume(1000, timeout=_POLL_S):
                error = message.error()
                if error and error.code() == KafkaError._PARTITION_EOF:
                    at_end = True
                    continue
                if error:
                    raise KafkaException(error)
                key = message.key()
                if key is not None:
                    value = message.value()
                    state.apply(_text(key), value if value is None or isinstance(value, bytes) else value.encode())
            if at_end and (_all_decided(consumer, low) or (time.monotonic() > settled and not whole)):
                return state
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {cluster.name}: state topic {TOPIC} not read within {timeout_s} s")
    except KafkaException as error:
        code = error.args[0].code()
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
            _must_be_absent(cluster, timeout_s)
            return state
        raise _translate(cluster, error, "read") from None
    finally:
        consumer.close()


def _must_be_absent(cluster: ClusterConfig, timeout_s: float) -> None:
    """MissingPermission when the state topic is only hidden from us: an empty state would be believed."""
    with ClusterClient(cluster, timeout_s=timeout_s) as client:
        if TOPIC in client.metadata([TOPIC]).denied:
            raise fault(
                client, f"state topic {TOPIC}", "Metadata (needs DESCRIBE)", ErrorCode.topic_authorization_failed
            )


def _beginning(consumer: Consumer, deadline: float) -> int:
    """Where the state topic's log starts. A leader that has just (re)started says for a moment that it is none."""
    while True:
        left = deadline - time.monotonic()
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=max(left, _POLL_S))
        except KafkaException as error:
            if error.args[0].code() not in _ELECTING or left <= 0:
                raise
        else:
            return int(low)
        time.sleep(_POLL_S)


def _all_decided(consumer: Consumer, low: int) -> bool:
    """Whether no transaction is open at the end of the topic, as far as the broker's last answer says.

    A commit is answered before its marker is in the topic (KIP-98): what was just committed could be missed.
    """
    (position,) = consumer.position([TopicPartition(TOPIC, 0)])
    _, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), cached=True)
    return max(position.offset, low) >= high  # a position below 0: nothing was read yet


def _text(key: bytes | str) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


class StateWriter:
    """Exclusive writer under one transactional id. Entering it fences the previous one and reads the state.

    Indeterminate when a record about the mirror cannot be read: nobody acts on a state that is known in part.
    """

    def __init__(self, cluster: ClusterConfig, writer: WriterId, *, timeout_s: float = 20.0) -> None:
        self.cluster = cluster
        self.id = writer
        self.timeout_s = timeout_s
        self.state = State()
        self._producer = _client(
            Producer,
            cluster,
            {
                **cluster.properties(),
                **_QUIET,
                "transactional.id": str(writer),
                "transaction.timeout.ms": _TRANSACTION_MS,
                "message.timeout.ms": 10_000,
                "linger.ms": 0,
                "queue.buffering.max.kbytes": _LINE_KIB,
            },
        )

    def __enter__(self) -> StateWriter:
        try:
            self._producer.init_transactions(self.timeout_s)
        except KafkaException as error:
            raise _translate(self.cluster, error, "take over") from None
        self.refresh()
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to give back: the next owner takes the id by fencing this one."""

    def put(self, *records: Record | Forget) -> None:
        """Write these records in one transaction: all or none. LostOwnership when another owner took the id."""
        try:
            self._producer.begin_transaction()
            for record in records:
                for key, value in self.state.rows(record):
                    self._produce(key, value)
            self._commit()
        except KafkaException as error:
            raise _translate(self.cluster, error, "write") from None
        for record in records:
            self.state.put(record)

    def refresh(self) -> State:
        """Read again what others (the data plane, the conductor) have written since."""
        self.state = read_state(self.cluster, timeout_s=_ABORTED_S, whole=True)
        self.state.require(self.id.mirror)
        return self.state

    def _produce(self, key: str, value: bytes | None) -> None:
        """Put into the client's line, which is short: a whole cluster's partitions must not fill the memory."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                self._producer.produce(TOPIC, key=key, value=value, partition=0)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    with suppress(KafkaException):
                        self._producer.abort_transaction(5)
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
                self._producer.poll(_POLL_S)

    def _commit(self) -> None:
        """A commit whose answer is late is asked for again: the same commit, never a second one."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                self._producer.commit_transaction(5)
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.code() in _FENCED or not reason.retriable() or time.monotonic() > deadline:
                    if reason.txn_requires_abort():
                        # A broker that never got the first record refuses the abort, too: the first reason counts.
                        with suppress(KafkaException):
                            self._producer.abort_transaction(5)
                    raise


def _client(kind: Callable[[dict[str, Any]], Client], cluster: ClusterConfig, properties: dict[str, Any]) -> Client:
    """A client of librdkafka. BadRequest for properties that it doesn't know or take."""
    try:
        return kind(properties)
    except KafkaException as error:
        raise BadRequest(f"cluster {cluster.name}: {error.args[0].str()}") from None


def _translate(cluster: ClusterConfig, error: KafkaException, deed: str) -> Exception:
    reason: KafkaError = error.args[0]
    where = f"cluster {cluster.name}, state topic {TOPIC}: cannot {deed}"
    if reason.code() in _FENCED:
        return LostOwnership(f"{where}: another process has taken over this mirror; this one stops here")
    if reason.code() in _DENIED:
        return MissingPermission(
            f"{where}: {reason.name()} for {cluster.user() or 'this principal'}; "
            f"`mirrorbook cluster check {cluster.name}` names the rights"
        )
    if reason.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, *_ELECTING):
        return Unreachable(f"{where}: no answer in time ({reason.name()})")
    if reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return RemoteFault(f"{where}: the topic does not exist; has a mirror been created towards this cluster?")
    return RemoteFault(f"{where}: {reason.name()}: {reason.str()}")

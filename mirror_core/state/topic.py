"""The state topic: read by anyone who may. Who writes it: `state/writer.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.faults import ErrorCode, fault
from mirror_core.model.errors import BadRequest, LostOwnership, MissingPermission, RemoteFault, Unreachable
from mirror_core.state.records import TOPIC, State
from mirror_core.state.remembered import REMEMBERED, Memory, log_now, read_on

FENCED: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError._FATAL,
        KafkaError._CONFLICT,  # what librdkafka answers to every call after the fatal one; it says "retriable", wrongly
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
TAKEN: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
"""Of these the ones that say nothing but that."""
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_ELECTING: Final = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
Client = TypeVar("Client", Consumer, Producer)

POLL_S: Final = 0.02
"""consume() waits for the whole number of messages or as long as this."""
_MARKER_S: Final = 1.0
"""How long a reader waits for open transactions to be decided; a killed owner's stay open for longer."""
TRANSACTION_MS: Final = 10_000
"""Longest life of a transaction, so of one whose owner was killed in the middle of a commit."""
_ABORTED_S: Final = 35.0
"""By then it is aborted: brokers look for timed-out transactions every 10 s by default."""
_HANGING: Final = (
    "a transaction that is open there hides what stands behind it. A coordinator ends one after "
    f"{TRANSACTION_MS / 1000:.0f} s; `kafka-transactions.sh --bootstrap-server … find-hanging --topic {TOPIC} "
    "--partition 0` names one that nobody ends, and `abort` ends it"
)
"""A coordinator that meets a broker in the moment of its start may drop the marker that it had for it."""
LINE_KIB: Final = 1 << 10
"""Of records on their way from or to a broker."""
_LINE_FULL_MS: Final = 5
"""Until librdkafka looks again whether there is room in line; by default a second, with all of it taken long ago."""
QUIET: Final = {"log_level": 0, "error_cb": lambda error: None}  # errors reach us through the calls themselves


def read_state(
    cluster: ClusterConfig,
    *,
    timeout_s: float = 10.0,
    whole: bool = False,
    heard: Callable[[], None] = lambda: None,
) -> State:
    """The committed state at this moment; empty when the state topic does not exist.

    Behind the open transaction of a killed owner, committed records of others are hidden until the broker aborts it.
    For a look that is good enough; who is about to act (`whole`) waits for it within the time limit.
    The limit is for silence: while answers come, it begins anew, until the end was seen once; `heard` is told so.
    While a run is at work, it is read on from where it was read before (`remembered`).
    """
    if not REMEMBERED.keeps:
        return _from_the_beginning(cluster, timeout_s, whole, heard)[0]
    known = REMEMBERED.take(cluster)
    memory = read_on(cluster, known, heard) if known else None
    if memory is None:
        log = log_now(cluster, TOPIC)  # before it is read: ids and epochs that hold later have held all the time
        state, low, position = _from_the_beginning(cluster, timeout_s, whole, heard)
        if log is None or position is None:
            return state
        memory = Memory(log, low, position, state)
    state = memory.state.copy()  # whoever asked puts into it what it writes; what is remembered was read
    REMEMBERED.put(cluster, memory)
    return state


def _from_the_beginning(
    cluster: ClusterConfig, timeout_s: float, whole: bool, heard: Callable[[], None]
) -> tuple[State, int, int | None]:
    """The state, the log start, and the next offset to be read; None unless all before it was decided."""
    properties = {
        **cluster.properties(),
        **QUIET,
        "group.id": "mirrorbook-state-reader",  # demanded by librdkafka; nothing is ever committed under it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "queued.max.messages.kbytes": LINE_KIB,
        "fetch.queue.backoff.ms": _LINE_FULL_MS,
        "fetch.wait.max.ms": 10,  # the end of the topic is told by an empty answer: don't have the broker hold it back
        "client.rack": "",  # with one, it may be told by a replica that is behind the leader (KIP-392)
    }
    state = State()
    consumer = client(Consumer, cluster, properties)
    deadline = time.monotonic() + timeout_s
    try:
        low = _beginning(consumer, deadline)
        deadline = time.monotonic() + timeout_s
        heard()
        consumer.assign([TopicPartition(TOPIC, 0, low)])
        settled = time.monotonic() + _MARKER_S
        at_end = False
        while True:
            messages = consumer.consume(1000, timeout=POLL_S)
            if messages and not at_end:
                deadline = time.monotonic() + timeout_s
                heard()
            for message in messages:
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
            decided = _all_decided(consumer, low) if at_end else None
            if decided is not None or (at_end and time.monotonic() > settled and not whole):
                return state, low, decided
            if time.monotonic() > deadline:
                why = f": {_HANGING}" if at_end else ""
                raise Unreachable(f"cluster {cluster.name}: state topic {TOPIC} not read within {timeout_s} s{why}")
    except KafkaException as error:
        code = error.args[0].code()
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
            _is_absent(cluster, timeout_s)
            return state, 0, None
        raise translate(cluster, error, "read") from None
    finally:
        consumer.close()


def read_foreign(cluster: ClusterConfig, *, timeout_s: float = 10.0) -> State:
    """The same of a cluster that may never have been a destination: one request tells, a reader would take many."""
    return State() if _is_absent(cluster, timeout_s) else read_state(cluster, timeout_s=timeout_s)


def read_whole(cluster: ClusterConfig) -> State:
    """The state for one who is about to act on it: a killed owner's open transaction is waited for."""
    return read_state(cluster, timeout_s=_ABORTED_S, whole=True)


def _is_absent(cluster: ClusterConfig, timeout_s: float) -> bool:
    """MissingPermission when the state topic is only hidden from us: an empty state would be believed."""
    with ClusterClient(cluster, timeout_s=timeout_s) as client:
        view = client.metadata([TOPIC])
        if TOPIC in view.denied:
            raise fault(
                client, f"state topic {TOPIC}", "Metadata (needs DESCRIBE)", ErrorCode.topic_authorization_failed
            )
    return TOPIC not in view.topics


def _beginning(consumer: Consumer, deadline: float) -> int:
    """Where the state topic's log starts. A leader that has just (re)started says for a moment that it is none."""
    while True:
        left = deadline - time.monotonic()
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=max(left, POLL_S))
        except KafkaException as error:
            if error.args[0].code() not in _ELECTING or left <= 0:
                raise
        else:
            return int(low)
        time.sleep(POLL_S)


def _all_decided(consumer: Consumer, low: int) -> int | None:
    """The next offset to be read; None while a transaction is open before the end of the topic, as far as the broker's
    last answer says.

    A commit is answered before its marker is in the topic (KIP-98): what was just committed could be missed.
    """
    (position,) = consumer.position([TopicPartition(TOPIC, 0)])
    _, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), cached=True)
    reached = max(position.offset, low)  # a position below 0: nothing was read yet
    return reached if reached >= high else None


def _text(key: bytes | str) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def client(kind: Callable[[dict[str, Any]], Client], cluster: ClusterConfig, properties: dict[str, Any]) -> Client:
    """A client of librdkafka. BadRequest for properties that it doesn't know or take."""
    try:
        return kind(properties)
    except KafkaException as error:
        raise BadRequest(f"cluster {cluster.name}: {error.args[0].str()}") from None


def translate(cluster: ClusterConfig, error: KafkaException, action: str) -> Exception:
    reason: KafkaError = error.args[0]
    where = f"cluster {cluster.name}, state topic {TOPIC}: cannot {action}"
    if reason.code() in FENCED:
        return LostOwnership(f"{where}: another process now controls this mirror; stopping")
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

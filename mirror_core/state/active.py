"""Topic `__mirrorbook_active` of a cluster: which cluster each mirror's applications should use, for them to follow.

One partition, compacted; the key is the mirror's name, the value JSON. Both clusters have one, so that applications may
ask whichever answers: the higher generation is right, and of equal ones the later. It is no memory of ours: nothing is
decided by it but the next generation. Written in a transaction of the mirror's own transactional id, so whoever slept
since it looked is shut out.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.topics import NewTopic, create_topics
from mirror_core.model.errors import MissingPermission, RemoteFault, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import ACTIVE_TOPIC, ClusterName, MirrorName
from mirror_core.state.topic import POLL_S, QUIET, TRANSACTION_MS, client

_PARTITION: Final = 0
_AS_LONG: Final = 12
"""Times that it takes to connect and be answered once: librdkafka connects three times, one after the other."""
_DENIED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """What is announced of one mirror. Applications read these fields by their names."""

    mirror: MirrorName
    active: ClusterName
    """The cluster where its applications may write."""
    cluster_id: str
    bootstrap_servers: str
    """As Mirrorbook reaches it: applications may have another listener."""
    since_ms: int
    run: str
    """The run that moved them; empty: none did yet."""
    generation: int
    """Grows with every move."""

    @property
    def order(self) -> tuple[int, int]:
        """The greater one is right. Both sides count alike unless one was dead: then the time decides."""
        return self.generation, self.since_ms


def newest(config: ClusterConfig, mirror: MirrorName, timeout_s: float) -> Active | None:
    """What this cluster's topic says of a mirror now; None: nothing, or there is no such topic.

    The limit is for silence: a cluster that is far away gets more, by the time of its first answer.
    """
    asked = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as broker:
        view = broker.metadata([ACTIVE_TOPIC])
    deadline = asked + _patience_s(asked, timeout_s)
    if ACTIVE_TOPIC in view.denied:
        raise MissingPermission(f"cluster {config.name}, topic {ACTIVE_TOPIC}: needs READ")
    return _read(config, mirror, deadline) if ACTIVE_TOPIC in view.topics else None


def announce(config: ClusterConfig, active: Active, timeout_s: float = LIMITS.silent_source_s) -> Active:
    """Say so on one cluster, unless a later generation is known there; what the topic says now.

    May be repeated, by anybody, at any time: makes the topic if need be, and writes nothing that stands there already.
    Each wait is for `timeout_s` at most, or more where the first answer has come from far away. MirrorError when it
    could not be written.
    """
    asked = time.monotonic()
    with ClusterClient(config, timeout_s=timeout_s) as broker:
        broker.metadata(())
        patience_s = _patience_s(asked, timeout_s)
        ensure_topic(broker)
    deadline = time.monotonic() + patience_s
    producer = client(
        Producer,
        config,
        {
            **config.properties(),
            **QUIET,
            "transactional.id": f"mirrorbook.active.{active.mirror}",
            "transaction.timeout.ms": TRANSACTION_MS,
            "message.timeout.ms": min(TRANSACTION_MS, int(patience_s * 1000)),
        },
    )
    try:
        producer.init_transactions(_left(deadline))
        found = _read(config, active.mirror, deadline)
        if found is not None and found.order >= active.order:
            return found
        producer.begin_transaction()
        key, value = active.mirror.encode(), msgspec.json.encode(active)
        producer.produce(ACTIVE_TOPIC, key=key, value=value, partition=_PARTITION)
        try:
            producer.commit_transaction(_left(deadline))
        except KafkaException:
            with suppress(KafkaException):
                producer.abort_transaction(_left(deadline))
            raise
    except KafkaException as error:
        raise _translated(config, error, "write") from None
    return active


def repeat(
    here: ClusterConfig, there: ClusterConfig, mirror: MirrorName, timeout_s: float = LIMITS.silent_source_s
) -> Active | None:
    """Say on another cluster, to which it was owed, what this one says of a mirror; what stands there now.

    None: nothing was ever said. MirrorError when one of them does not answer.
    """
    said = newest(here, mirror, timeout_s)
    return None if said is None else announce(there, said, timeout_s)


def ensure_topic(broker: ClusterClient) -> None:
    """Make it unless it is there, as well replicated as the cluster allows. MirrorError when that may not be done."""
    if ACTIVE_TOPIC in broker.metadata([ACTIVE_TOPIC]).topics:
        return
    factor = min(3, len(broker.brokers()))
    configs = {"cleanup.policy": "compact", "min.insync.replicas": "2" if factor == 3 else "1"}
    create_topics(broker, [NewTopic(name=ACTIVE_TOPIC, partitions=1, replication_factor=factor, configs=configs)])


def _read(config: ClusterConfig, mirror: MirrorName, deadline: float) -> Active | None:
    """The newest record of this mirror, also of a transaction that was given up: its generation is not used twice."""
    properties = {
        "group.id": "mirrorbook-active-reader",  # demanded by librdkafka; nothing is ever committed under it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 10,
    }
    consumer = client(Consumer, config, {**config.properties(), **QUIET, **properties})
    found: Active | None = None
    try:
        consumer.assign([TopicPartition(ACTIVE_TOPIC, _PARTITION, 0)])
        while True:
            for message in consumer.consume(500, POLL_S):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found
                if error is not None and error.code() in _DENIED:
                    raise KafkaException(error)
                if error is None and message.key() == mirror.encode():
                    found = _decoded(message.value())
            if time.monotonic() > deadline:
                raise Unreachable(f"cluster {config.name}, topic {ACTIVE_TOPIC}: not read in time")
    except KafkaException as error:
        raise _translated(config, error, "read") from None
    finally:
        consumer.close()


_DECODER: Final = msgspec.json.Decoder(Active)  # made once: see state/records.py


def _decoded(value: str | bytes | None) -> Active | None:
    """None for what is none of ours: anybody who may write there can write anything."""
    try:
        return None if value is None else _DECODER.decode(value)
    except msgspec.MsgspecError:
        return None


def _patience_s(asked: float, timeout_s: float) -> float:
    """How long a cluster may take whose first answer has just come."""
    return max(timeout_s, _AS_LONG * (time.monotonic() - asked))


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _translated(config: ClusterConfig, error: KafkaException, action: str) -> RemoteFault:
    reason: KafkaError = error.args[0]
    where = f"cluster {config.name}, topic {ACTIVE_TOPIC}: cannot {action}: {reason.name()}"
    if reason.code() in _DENIED:
        return MissingPermission(f"{where} for {config.user() or 'this principal'}")
    if reason.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
        return Unreachable(where)
    return RemoteFault(where)

"""Consumes as a drill's group, by manual assignment: a killed consumer leaves no member behind."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import BadRequest, MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.model.text import format_count

CONSUME_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05
_DENIED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED})


def consume_and_commit(
    config: ClusterConfig, group: str, start: Mapping[Partition, Offset], until: Mapping[Partition, Offset]
) -> None:
    """[start, until) of each partition."""
    consumer = _make_consumer(config, group)
    try:
        _consume(config, consumer, start, until)
        consumer.commit(offsets=[_to_topic_partition(p, offset) for p, offset in until.items()], asynchronous=False)
    except KafkaException as error:
        raise _to_error(config, group, error.args[0], "commit") from None
    finally:
        consumer.close()


def consume_from_committed(
    config: ClusterConfig, group: str, ends: Mapping[Partition, Offset]
) -> dict[Partition, list[Offset]]:
    """Offsets read up to `ends`. Commits nothing."""
    consumer = _make_consumer(config, group)
    try:
        committed = consumer.committed([TopicPartition(p.topic, p.index) for p in ends], timeout=CONSUME_TIMEOUT_S)
        start = {
            Partition(topic_partition.topic, topic_partition.partition): Offset(topic_partition.offset)
            for topic_partition in committed
            if topic_partition.offset >= 0
        }
        if missing := ends.keys() - start.keys():
            raise MirrorError(
                f"cluster {config.name}, group {group}: no offset for {format_count(len(missing), 'partition')},"
                f" such as {min(missing)}: what it committed elsewhere was not brought over"
            )
        return _consume(config, consumer, start, ends)
    except KafkaException as error:
        raise _to_error(config, group, error.args[0], "read on") from None
    finally:
        consumer.close()


def _consume(
    config: ClusterConfig, consumer: Consumer, start: Mapping[Partition, Offset], until: Mapping[Partition, Offset]
) -> dict[Partition, list[Offset]]:
    read: dict[Partition, list[Offset]] = {p: [] for p in until}
    next_offsets, deadline = dict(start), time.monotonic() + CONSUME_TIMEOUT_S
    consumer.assign([_to_topic_partition(p, offset) for p, offset in start.items()])
    while unfinished := [p for p, end in until.items() if next_offsets[p] < end]:
        if time.monotonic() > deadline:
            raise Unreachable(
                f"cluster {config.name}: {unfinished[0]} could not be read within {CONSUME_TIMEOUT_S:.0f} s"
            )
        for message in consumer.consume(500, _POLL_S):
            error = message.error()
            if error is not None:
                if not error.retriable():
                    raise KafkaException(error)
                continue
            partition = Partition(str(message.topic()), int(message.partition() or 0))
            offset = Offset(int(message.offset() or 0))
            if offset < until[partition]:
                read[partition].append(offset)
            next_offsets[partition] = Offset(offset + 1)
    return read


def _to_topic_partition(partition: Partition, offset: Offset) -> TopicPartition:
    return TopicPartition(partition.topic, partition.index, offset)


def _make_consumer(config: ClusterConfig, group: str) -> Consumer:
    properties: dict[str, Any] = {
        **config.properties(),
        "log_level": 0,
        "error_cb": lambda error: None,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 50,
    }
    try:
        return Consumer(properties)
    except KafkaException as error:
        raise BadRequest(f"cluster {config.name}: {error.args[0].str()}") from None


def _to_error(config: ClusterConfig, group: str, error: KafkaError, action: str) -> MirrorError:
    where = f"cluster {config.name}, group {group}: cannot {action}: {error.name()}"
    if error.code() in _DENIED:
        return MissingPermission(f"{where} for {config.user() or 'this principal'}")
    return RemoteFault(f"{where}: {error.str()}")

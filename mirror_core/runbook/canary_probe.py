"""Tries each broker as applications do, on a topic made and deleted for it.

Brokers have acknowledged and dropped records of a producer whose state they believed to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from mirror_core.decide.canary_result import (
    BrokerAvailability,
    CanaryKind,
    CanaryOutcome,
    CanaryTrial,
    build_canary_evidence,
    is_untried,
    list_canary_problems,
)
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import fetch_api_versions
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.librdkafka import QUIET_PROPERTIES, make_client
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import BROKER_TIME_CONFIGS, NewTopic, create_topics, delete_topics
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.run import StepEvidence
from mirror_core.model.text import format_items
from mirror_core.model.timing import TIMEOUTS

GROUP_RECORDS: Final = 4
_POLL_S: Final = 0.05
_SESSION_MS: Final = 6_000
"""Kafka's default minimum. A killed member is waited for that long."""
_CONNECTION_SETTINGS: Final = {**QUIET_PROPERTIES, "socket.connection.setup.timeout.ms": 3_000}
"""A hung broker accepts connections and never authenticates: try another one soon."""
_DENIED_CODES: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_PURGED_CODES: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


@dataclass(frozen=True, slots=True)
class CanaryProbe:
    config: ClusterConfig
    topic: str
    mirror: str
    payload: str

    def try_broker(self, broker: int, partition: int) -> list[CanaryTrial]:
        producers: dict[CanaryKind, Callable[[int, int], None]] = {
            CanaryKind.PLAIN: self._probe_plain,
            CanaryKind.IDEMPOTENT: self._probe_idempotent,
            CanaryKind.TRANSACTIONAL: self._probe_transactional,
        }
        partition_name = f"{self.topic}-{partition}"
        return [
            self._run_trial(kind, broker, partition_name, partial(probe, broker, partition))
            for kind, probe in producers.items()
        ]

    def try_group(self, partitions: list[int]) -> CanaryTrial:
        """One member reads half, commits and leaves. The next one must continue exactly there."""
        return self._run_trial(CanaryKind.GROUP, None, self.topic, lambda: self._probe_group(partitions))

    # -- kinds ---------------------------------------------------------------------------------------------------

    def _probe_plain(self, broker: int, partition: int) -> None:
        self._write_and_read(CanaryKind.PLAIN, partition, {"enable.idempotence": False, "acks": "all"})

    def _probe_idempotent(self, broker: int, partition: int) -> None:
        self._write_and_read(CanaryKind.IDEMPOTENT, partition, {"enable.idempotence": True})

    def _write_and_read(self, kind: CanaryKind, partition: int, properties: Mapping[str, object]) -> None:
        value = f"{self.payload} {kind}".encode()
        (offset,) = self._produce(self._create_producer(properties), partition, [value])
        self._consume(partition, offset, [value])

    def _probe_transactional(self, broker: int, partition: int) -> None:
        aborted, committed = f"{self.payload} aborted".encode(), f"{self.payload} committed".encode()
        # The state topic's id prefix: no further grant is needed.
        transactional_settings = {"transactional.id": f"mirrorbook.canary.{self.mirror}.{broker}"}
        producer = self._create_producer(
            {**transactional_settings, "transaction.timeout.ms": int(TIMEOUTS.canary_trial_s * 1000)}
        )
        producer.init_transactions(TIMEOUTS.canary_trial_s)
        producer.begin_transaction()
        (offset,) = self._produce(producer, partition, [aborted])
        producer.abort_transaction(TIMEOUTS.canary_trial_s)
        producer.begin_transaction()
        self._produce(producer, partition, [committed])
        producer.commit_transaction(TIMEOUTS.canary_trial_s)
        self._consume(partition, offset, [committed])

    def _probe_group(self, partitions: list[int]) -> None:
        producer = self._create_producer({"enable.idempotence": True})
        values = [f"{self.payload} group {number}".encode() for number in range(GROUP_RECORDS)]
        offsets = {p: self._produce(producer, p, values) for p in partitions}
        starts, halves = ({p: o[n] for p, o in offsets.items()} for n in (0, GROUP_RECORDS // 2))
        ends = {p: o[-1] for p, o in offsets.items()}
        self._run_group_member(starts, {p: half - 1 for p, half in halves.items()}, commit=halves)
        first_offsets = self._run_group_member(None, ends)
        wrong_offsets = [
            f"{self.topic}-{p}: committed {half}, read on from {first_offsets[p]}"
            for p, half in halves.items()
            if first_offsets[p] != half
        ]
        if wrong_offsets:
            raise RemoteFault(f"the group did not go on where it had committed: {join_limited(wrong_offsets)}")

    # -- parts ---------------------------------------------------------------------------------------------------

    def _run_trial(self, kind: CanaryKind, broker: int | None, location: str, probe: Callable[[], None]) -> CanaryTrial:
        started, outcome, reason = time.monotonic(), CanaryOutcome.PASSED, ""
        try:
            probe()
        except KafkaException as error:
            kafka_error: KafkaError = error.args[0]
            if kafka_error.code() in _DENIED_CODES:
                outcome, reason = (
                    CanaryOutcome.DENIED,
                    f"{kafka_error.name()} for {self.config.user() or 'this principal'}",
                )
            else:
                outcome, reason = CanaryOutcome.FAILED, f"{location}: {kafka_error.name()}"
        except RemoteFault as error:
            outcome, reason = CanaryOutcome.FAILED, str(error)
        return CanaryTrial(kind=kind, broker=broker, outcome=outcome, seconds=time.monotonic() - started, reason=reason)

    def _create_producer(self, properties: Mapping[str, object]) -> Producer:
        timeout_settings = {"delivery.timeout.ms": int(TIMEOUTS.canary_trial_s * 1000)}
        return make_client(
            Producer,
            self.config,
            {**self.config.properties(), **_CONNECTION_SETTINGS, **timeout_settings, **properties},
        )

    def _produce(self, producer: Producer, partition: int, values: list[bytes]) -> list[int]:
        """Returns offsets in order. Raises unless all records are acknowledged."""
        results: list[int | KafkaError] = []

        def on_delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            results.append(error if error is not None else -1 if offset is None else offset)

        for value in values:
            producer.produce(self.topic, value=value, partition=partition, on_delivery=on_delivered)
        producer.flush(TIMEOUTS.canary_trial_s)
        delivery_errors = [result for result in results if isinstance(result, KafkaError)]
        if any(result.code() in _PURGED_CODES for result in delivery_errors):
            producer.commit_transaction(TIMEOUTS.canary_trial_s)  # raises the cause, which delivery errors lack
        if delivery_errors:
            raise KafkaException(delivery_errors[0])
        if len(results) < len(values):
            raise Unreachable(f"{self.topic}-{partition}: not acknowledged within {TIMEOUTS.canary_trial_s:.0f} s")
        return [result for result in results if isinstance(result, int)]

    def _consume(self, partition: int, offset: int, values: list[bytes]) -> None:
        consumer = self._create_consumer({"enable.auto.commit": False, "auto.offset.reset": "error"})
        expected_values, deadline = list(values), time.monotonic() + TIMEOUTS.canary_trial_s
        try:
            consumer.assign([TopicPartition(self.topic, partition, offset)])
            while expected_values:
                if time.monotonic() > deadline:
                    raise Unreachable(f"{self.topic}-{partition}, offset {offset}: acknowledged, and not to be read")
                for message in _poll_records(consumer):
                    if expected_values and message.value() != expected_values[0]:
                        raise RemoteFault(
                            f"{self.topic}-{partition}, offset {message.offset()}: another record was read than the "
                            "one that was acknowledged there"
                        )
                    del expected_values[:1]
        finally:
            consumer.close()

    def _run_group_member(
        self,
        starts: Mapping[int, int] | None,
        target_offsets: Mapping[int, int],
        commit: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        first_offsets: dict[int, int] = {}
        last_offsets: dict[int, int] = {}

        def on_assigned(member: Consumer, partitions: list[TopicPartition]) -> None:
            if starts is not None:
                member.assign([TopicPartition(self.topic, p.partition, starts[p.partition]) for p in partitions])

        member = self._create_consumer({"enable.auto.commit": False, "auto.offset.reset": "earliest"})
        deadline = time.monotonic() + TIMEOUTS.canary_trial_s
        try:
            member.subscribe([self.topic], on_assign=on_assigned)
            while any(last_offsets.get(p, -1) < end for p, end in target_offsets.items()):
                if time.monotonic() > deadline:
                    unread_partitions = [
                        f"{self.topic}-{p}" for p, end in target_offsets.items() if last_offsets.get(p, -1) < end
                    ]
                    raise Unreachable(
                        f"{join_limited(unread_partitions)}: a group's member could not read it within"
                        f" {TIMEOUTS.canary_trial_s:.0f} s"
                    )
                for message in _poll_records(member):
                    partition, offset = message.partition(), message.offset()
                    if partition is not None and offset is not None:
                        first_offsets.setdefault(partition, offset)
                        last_offsets[partition] = offset
            if commit is not None:
                committed_offsets = [TopicPartition(self.topic, p, offset) for p, offset in commit.items()]
                member.commit(offsets=committed_offsets, asynchronous=False)
        finally:
            with suppress(KafkaException):
                member.close()
        return first_offsets

    def _create_consumer(self, properties: dict[str, Any]) -> Consumer:
        group_settings = {
            "group.id": f"mirrorbook-canary-{self.mirror}",
            "isolation.level": "read_committed",
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": _SESSION_MS // 3,
            "fetch.wait.max.ms": 50,
        }
        return make_client(
            Consumer, self.config, {**self.config.properties(), **_CONNECTION_SETTINGS, **group_settings, **properties}
        )


def _poll_records(consumer: Consumer) -> Iterator[Message]:
    for message in consumer.consume(100, _POLL_S):
        error = message.error()
        if error is None:
            yield message
        elif error.code() in _DENIED_CODES:
            raise KafkaException(error)


CANARY_TOPIC: Final = "__mirrorbook_canary"
_PARALLEL_BROKERS: Final = 8


def run_canary(config: ClusterConfig, mirror: MirrorName, payload: str, topics: Collection[str]) -> StepEvidence:
    """Raises if one broker fails. `topics`: the mirror's, which all need leaders."""
    availability = _wait_for_brokers(config, topics)
    topic = f"{CANARY_TOPIC}.{mirror}"
    probe = CanaryProbe(config, topic, mirror, payload)
    with ClusterClient(config) as client:
        _delete_canary_topic(client, topic)
        partition_numbers = range(len(availability.available))
        new_topic = NewTopic(
            name=topic,
            partitions=len(partition_numbers),
            replication_factor=1,
            configs={"min.insync.replicas": "1", "cleanup.policy": "delete", **BROKER_TIME_CONFIGS},
            assignments=tuple((broker,) for broker in availability.available),
        )
        create_topics(client, [new_topic])
        try:
            with ThreadPoolExecutor(_PARALLEL_BROKERS) as pool:
                by_broker = pool.map(probe.try_broker, availability.available, partition_numbers)
                trials = [trial for trials in by_broker for trial in trials]
            trials.append(probe.try_group([*partition_numbers]))
        finally:
            cleanup_error = _delete_canary_topic(client, topic)
    problem_lines = list(list_canary_problems(availability, trials))
    if problem_lines:
        error_class = Unreachable if availability.unavailable_leaders else RemoteFault
        raise error_class(f"cluster {config.name}: the canary failed:{format_items(problem_lines)}")
    if is_untried(trials):
        raise MissingPermission(f"cluster {config.name}, topic {topic}: nothing could be tried: {trials[0].reason}")
    return {**build_canary_evidence(availability, trials), **({"left behind": cleanup_error} if cleanup_error else {})}


def _wait_for_brokers(config: ClusterConfig, topics: Collection[str]) -> BrokerAvailability:
    deadline = time.monotonic() + TIMEOUTS.canary_missing_broker_s
    with ClusterClient(config, timeout_s=TIMEOUTS.canary_broker_s) as client:
        while True:
            availability = _probe_brokers(client, topics)
            if not availability.unavailable or time.monotonic() > deadline:
                return availability
            time.sleep(0.5)


def _probe_brokers(client: ClusterClient, topics: Collection[str]) -> BrokerAvailability:
    metadata = client.metadata(topics)
    led_partitions: dict[int, Partition] = {}
    for name, topic in sorted(metadata.topics.items()):
        for index, leader in sorted(topic.partitions.items()):
            led_partitions.setdefault(leader.broker, Partition(name, index))
    offline_partitions = [
        Partition(name, index)
        for name, topic in sorted(metadata.topics.items())
        for index, leader in sorted(topic.partitions.items())
        if leader.broker not in metadata.brokers
    ]
    answering_brokers = [broker for broker in sorted(metadata.brokers) if _is_answering(client, broker)]
    away_brokers = sorted(metadata.brokers.keys() - set(answering_brokers))
    return BrokerAvailability(
        available=tuple(answering_brokers),
        unavailable=tuple(away_brokers),
        led_partitions=led_partitions,
        offline_partitions=tuple(offline_partitions),
    )


def _is_answering(client: ClusterClient, broker: int) -> bool:
    try:
        fetch_api_versions(client, broker)
    except Unreachable:
        return False
    return True


def _delete_canary_topic(client: ClusterClient, topic: str) -> str:
    try:
        if topic in find_existing_topics(client, [topic]):
            delete_topics(client, [topic])
    except MirrorError as error:
        return str(error)
    return ""

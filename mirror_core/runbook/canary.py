"""The canary: tries each broker as applications do, on a topic made and deleted for it."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mirror_core.decide.canary import BrokerAvailability, build_canary_evidence, is_untried, list_canary_problems
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.existing import find_existing_topics
from mirror_core.kafka.topics import BROKER_TIME_CONFIGS, NewTopic, create_topics, delete_topics
from mirror_core.kafka.versions import fetch_api_versions
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.run import StepEvidence
from mirror_core.runbook.canary_trials import CanaryProbe

CANARY_TOPIC: Final = "__mirrorbook_canary"
_PARALLEL_BROKERS: Final = 8


def run_canary(config: ClusterConfig, mirror: MirrorName, payload: str, topics: Collection[str]) -> StepEvidence:
    """Try each broker. Raises if one fails.

    `topics`: the mirror's topics, which all need leaders.
    """
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
        raise error_class(
            f"cluster {config.name}: the canary failed:" + "".join(f"\n  - {line}" for line in problem_lines)
        )
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
    """Also deletes its records and its group's offsets. Returns the error text on failure."""
    try:
        if topic in find_existing_topics(client, [topic]):
            delete_topics(client, [topic])
    except MirrorError as error:
        return str(error)
    return ""

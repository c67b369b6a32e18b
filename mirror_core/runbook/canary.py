"""The canary: tries each broker as applications do, on a topic made and deleted for it."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from mirror_core.decide.canary import Standing, evidence, problems, untried
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.existing import existing
from mirror_core.kafka.topics import BROKER_TIME, NewTopic, create_topics, delete_topics
from mirror_core.kafka.versions import api_versions
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import MirrorName, Partition
from mirror_core.model.run import Evidence
from mirror_core.runbook.canary_trials import Ground

TOPIC: Final = "__mirrorbook_canary"
_AT_ONCE: Final = 8


def run_canary(config: ClusterConfig, mirror: MirrorName, note: str, topics: Collection[str]) -> Evidence:
    """Try each broker. Raises if one fails.

    `topics`: the mirror's topics, which all need leaders.
    """
    standing = _standing(config, topics)
    topic = f"{TOPIC}.{mirror}"
    ground = Ground(config, topic, mirror, note)
    with ClusterClient(config) as client:
        _clean(client, topic)
        numbers = range(len(standing.answering))
        new = NewTopic(
            name=topic,
            partitions=len(numbers),
            replication_factor=1,
            configs={"min.insync.replicas": "1", "cleanup.policy": "delete", **BROKER_TIME},
            assignments=tuple((broker,) for broker in standing.answering),
        )
        create_topics(client, [new])
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                by_broker = pool.map(ground.try_broker, standing.answering, numbers)
                trials = [trial for trials in by_broker for trial in trials]
            trials.append(ground.try_group([*numbers]))
        finally:
            left = _clean(client, topic)
    found = list(problems(standing, trials))
    if found:
        kind = Unreachable if standing.missed else RemoteFault
        raise kind(f"cluster {config.name}: the canary failed:" + "".join(f"\n  - {line}" for line in found))
    if untried(trials):
        raise MissingPermission(f"cluster {config.name}, topic {topic}: nothing could be tried: {trials[0].reason}")
    return {**evidence(standing, trials), **({"left behind": left} if left else {})}


def _standing(config: ClusterConfig, topics: Collection[str]) -> Standing:
    deadline = time.monotonic() + LIMITS.broker_away_s
    with ClusterClient(config, timeout_s=LIMITS.canary_broker_s) as client:
        while True:
            found = _look(client, topics)
            if not found.away or time.monotonic() > deadline:
                return found
            time.sleep(0.5)


def _look(client: ClusterClient, topics: Collection[str]) -> Standing:
    view = client.metadata(topics)
    led: dict[int, Partition] = {}
    for name, topic in sorted(view.topics.items()):
        for index, leader in sorted(topic.partitions.items()):
            led.setdefault(leader.broker, Partition(name, index))
    leaderless = [
        Partition(name, index)
        for name, topic in sorted(view.topics.items())
        for index, leader in sorted(topic.partitions.items())
        if leader.broker not in view.brokers
    ]
    answering = [broker for broker in sorted(view.brokers) if _answers(client, broker)]
    away = sorted(view.brokers.keys() - set(answering))
    return Standing(answering=tuple(answering), away=tuple(away), led=led, leaderless=tuple(leaderless))


def _answers(client: ClusterClient, broker: int) -> bool:
    try:
        api_versions(client, broker)
    except Unreachable:
        return False
    return True


def _clean(client: ClusterClient, topic: str) -> str:
    """Also deletes its records and its group's offsets. Returns the error text on failure."""
    try:
        if topic in existing(client, [topic]):
            delete_topics(client, [topic])
    except MirrorError as error:
        return str(error)
    return ""

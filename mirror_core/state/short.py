"""Explains failed state writes by too few in-sync replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mirror_core.decide.in_sync import IsrStatus, MinIsrTopic, explain_under_min_isr
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig
from mirror_core.kafka.placing import describe_placements
from mirror_core.kafka.topics import describe_available_configs
from mirror_core.model.errors import MirrorError
from mirror_core.state.records import STATE_TOPIC

_WRITTEN_TOPICS: Final = (STATE_TOPIC, "__transaction_state")
"""Transactions need the coordinator's topic."""
_MIN_ISR_TIMEOUT_S: Final = 3.0


def explain_min_isr(cluster: ClusterConfig, timeout_s: float) -> str:
    """Empty: another reason, or unknown."""
    try:
        with ClusterClient(cluster, timeout_s=min(_MIN_ISR_TIMEOUT_S, timeout_s)) as client:
            short_topics = list(_find_short_topics(client))
    except MirrorError:  # the caller has an error already
        return ""
    return explain_under_min_isr(cluster.name, cluster.control["bootstrap.servers"], short_topics)


def _find_short_topics(client: ClusterClient) -> Iterator[MinIsrTopic]:
    configs, _ = describe_available_configs(client, _WRITTEN_TOPICS)
    for topic, topic_configs in configs.items():
        if (min_isr_text := topic_configs.effective.get("min.insync.replicas")) is None or not min_isr_text.isdecimal():
            continue
        min_isr = int(min_isr_text)
        placements_found = describe_placements(client, [topic]).values()
        partitions = [
            IsrStatus(replicas=row.replicas, in_sync=row.in_sync, min_insync_replicas=min_isr)
            for row in placements_found
        ]
        if short_partitions := [partition for partition in partitions if partition.is_under_min_isr]:
            yield MinIsrTopic(topic=topic, worst=min(short_partitions, key=lambda partition: len(partition.in_sync)))

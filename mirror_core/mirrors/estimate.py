from __future__ import annotations

from collections.abc import Collection

from mirror_core.decide.outlook import (
    estimate_copy,
    format_copy_estimate,
    warn_few_replicas,
    warn_kafka_go_compaction,
    warn_unclean_elections,
)
from mirror_core.decide.topics import is_compacted
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, PartitionProducer, describe_known_producers, list_offsets
from mirror_core.kafka.sizes import fetch_log_sizes
from mirror_core.kafka.topics import describe_available_configs
from mirror_core.mirrors.broker_settings import UNCLEAN_ELECTION_KEY, check_auto_creation
from mirror_core.model.errors import RemoteFault
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.mirror import GapFilling
from mirror_core.model.names import Partition
from mirror_core.state.link import MirrorLink
from mirror_core.sync.topics import list_mirror_topics


def describe_copy_estimate(link: MirrorLink) -> tuple[str, ...]:
    """Three requests to each broker of the source."""
    limit_s = TIMEOUTS.estimate_response_s
    try:
        with (
            ClusterClient(link.source, timeout_s=limit_s) as source,
            ClusterClient(link.destination, timeout_s=limit_s) as destination,
        ):
            topics = list_mirror_topics(link, source)
            partitions = [Partition(name, index) for name, view in topics.items() for index in view.partitions]
            starts = list_offsets(source, partitions, OffsetPoint.START)
            ends = list_offsets(source, partitions, OffsetPoint.STABLE_END)
            estimate = estimate_copy(starts, ends, fetch_log_sizes(source, partitions), link.mirror.gaps)
            factors = {name: view.replication_factor for name, view in topics.items()}
            replica_warnings = warn_few_replicas(link.destination.name, factors, len(destination.brokers()))
            remarks = _format_setting_remarks(link, source, list(topics), partitions)
            auto_creation_warnings = check_auto_creation(destination, sorted(destination.brokers()))
            return (*format_copy_estimate(estimate), *replica_warnings, *remarks, *auto_creation_warnings)
    except RemoteFault as error:
        return (f"to copy: not known now: {error}",)


def _format_setting_remarks(
    link: MirrorLink, source: ClusterClient, topics: Collection[str], partitions: Collection[Partition]
) -> list[str]:
    configs, _ = describe_available_configs(source, topics)
    unclean = [
        name for name, topic_configs in configs.items() if topic_configs.effective.get(UNCLEAN_ELECTION_KEY) == "true"
    ]
    lines = warn_unclean_elections(source.name, unclean)
    compacted = {name for name, topic_configs in configs.items() if is_compacted(topic_configs.effective)}
    if link.mirror.gaps is GapFilling.MARKERS and compacted:
        producers = describe_known_producers(source, [p for p in partitions if p.topic in compacted])
        transactional = {p.topic for p, views in producers.states.items() if any(map(_is_transactional, views))}
        lines += warn_kafka_go_compaction(link.destination.name, compacted - transactional)
    return lines


def _is_transactional(producer: PartitionProducer) -> bool:
    return producer.coordinator_epoch >= 0 or producer.open_transaction_start >= 0

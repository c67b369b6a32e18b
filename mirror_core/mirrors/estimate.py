from __future__ import annotations

from collections.abc import Collection

from mirror_core.decide.outlook import compacted_for_kafka_go, few_replicas, in_words, outlook, unclean_elections
from mirror_core.decide.topics import cleans
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, ProducerView, known_producers, list_offsets
from mirror_core.kafka.sizes import log_sizes
from mirror_core.kafka.topics import told_configs
from mirror_core.mirrors.broker_settings import UNCLEAN, auto_creation
from mirror_core.model.errors import RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import Gaps
from mirror_core.model.names import Partition
from mirror_core.state.link import Link
from mirror_core.sync.topics import mirror_topics


def lines(link: Link) -> tuple[str, ...]:
    """Three requests to each broker of the source."""
    limit_s = LIMITS.estimated_source_s
    try:
        with (
            ClusterClient(link.source, timeout_s=limit_s) as source,
            ClusterClient(link.destination, timeout_s=limit_s) as destination,
        ):
            topics = mirror_topics(link, source)
            partitions = [Partition(name, index) for name, view in topics.items() for index in view.partitions]
            starts = list_offsets(source, partitions, Point.START)
            ends = list_offsets(source, partitions, Point.STABLE_END)
            ahead = outlook(starts, ends, log_sizes(source, partitions), link.mirror.gaps)
            factors = {name: view.replication_factor for name, view in topics.items()}
            few = few_replicas(link.destination.name, factors, len(destination.brokers()))
            remarks = _remarks(link, source, list(topics), partitions)
            created = auto_creation(destination, sorted(destination.brokers()))
            return (*in_words(ahead), *few, *remarks, *created)
    except RemoteFault as error:
        return (f"to copy: not known now: {error}",)


def _remarks(
    link: Link, source: ClusterClient, topics: Collection[str], partitions: Collection[Partition]
) -> list[str]:
    configs, _ = told_configs(source, topics)
    unclean = [name for name, found in configs.items() if found.effective.get(UNCLEAN) == "true"]
    lines = unclean_elections(source.name, unclean)
    compacted = {name for name, found in configs.items() if cleans(found.effective)}
    if link.mirror.gaps is Gaps.MARKERS and compacted:
        producers = known_producers(source, [p for p in partitions if p.topic in compacted])
        transactional = {p.topic for p, views in producers.states.items() if any(map(_is_transactional, views))}
        lines += compacted_for_kafka_go(link.destination.name, compacted - transactional)
    return lines


def _is_transactional(producer: ProducerView) -> bool:
    return producer.coordinator_epoch >= 0 or producer.open_transaction_start >= 0

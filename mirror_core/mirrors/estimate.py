"""What a mirror that is about to be created has before it: a quick look at both sides."""

from __future__ import annotations

from mirror_core.decide.outlook import few_replicas, in_words, outlook
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.sizes import log_sizes
from mirror_core.model.errors import RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Partition
from mirror_core.state.link import Link
from mirror_core.sync.topics import mirror_topics


def lines(link: Link) -> tuple[str, ...]:
    """In words, by three requests per broker of the source. Where one does not answer, that: nothing depends on it."""
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
            return (*in_words(ahead), *few)
    except RemoteFault as error:
        return (f"to copy: not known now: {error}",)

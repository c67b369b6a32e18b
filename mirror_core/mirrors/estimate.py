"""What a mirror that is about to be created has before it: a quick look at the source."""

from __future__ import annotations

from mirror_core.decide.outlook import in_words, outlook
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.sizes import log_sizes
from mirror_core.model.errors import RemoteFault
from mirror_core.model.limits import LIMITS
from mirror_core.model.names import Partition
from mirror_core.state.link import Link
from mirror_core.sync.topics import mirror_topics


def lines(link: Link) -> tuple[str, ...]:
    """In words, by three requests per broker of the source. Where it does not answer, that: nothing depends on it."""
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.estimated_source_s) as source:
            topics = mirror_topics(link, source)
            partitions = [Partition(name, index) for name, view in topics.items() for index in view.partitions]
            starts = list_offsets(source, partitions, Point.START)
            ends = list_offsets(source, partitions, Point.STABLE_END)
            return tuple(in_words(outlook(starts, ends, log_sizes(source, partitions), link.mirror.gaps)))
    except RemoteFault as error:
        return (f"to copy: not known now: {error}",)

"""Offline partitions, confirmed by two brokers.

One may be cut off from the controllers; trusting it would abandon partitions that have a leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.offsets import OffsetPoint, OffsetsResult, list_available_offsets
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition


def find_offline_partitions(client: ClusterClient, partitions: Collection[Partition]) -> frozenset[Partition]:
    """The higher leader epoch counts. A silent leader is still a leader."""
    topics = {p.topic for p in partitions}
    first = client.metadata(topics).topics
    client.mark_metadata_stale()
    second = client.metadata(topics).topics
    return frozenset(p for p in partitions if max(_epoch_and_broker(first, p), _epoch_and_broker(second, p))[1] < 0)


def _epoch_and_broker(topics: Mapping[str, TopicMetadata], partition: Partition) -> tuple[int, int]:
    topic = topics.get(partition.topic)
    leader = topic.partitions.get(partition.index) if topic else None
    return (leader.epoch, leader.broker) if leader else (-1, -1)


def list_offsets_confirmed(
    client: ClusterClient, partitions: Collection[Partition], point: OffsetPoint, *, within_s: float
) -> OffsetsResult:
    """A second broker confirms missing leaders.

    Partitions with a silent leader are in neither part.
    """
    result = list_available_offsets(client, partitions, point, within_s=within_s)
    if not result.offline:
        return result
    try:
        offline = find_offline_partitions(client, result.offline)
        more_offsets = list_available_offsets(client, result.offline - offline, point, within_s=within_s)
    except RemoteFault:  # keep what is known
        return result
    return OffsetsResult({**result.offsets, **more_offsets.offsets}, offline)

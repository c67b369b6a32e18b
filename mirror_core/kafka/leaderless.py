"""Offline partitions, confirmed by two brokers.

One may be cut off from the controllers; trusting it would abandon partitions that have a leader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.offsets import Led, Point, led_offsets
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition


def leaderless(client: ClusterClient, partitions: Collection[Partition]) -> frozenset[Partition]:
    """The higher leader epoch counts. A silent leader is still a leader."""
    topics = {p.topic for p in partitions}
    first = client.metadata(topics).topics
    client.ask_another()
    second = client.metadata(topics).topics
    return frozenset(p for p in partitions if max(_epoch_and_broker(first, p), _epoch_and_broker(second, p))[1] < 0)


def _epoch_and_broker(topics: Mapping[str, TopicView], partition: Partition) -> tuple[int, int]:
    topic = topics.get(partition.topic)
    leader = topic.partitions.get(partition.index) if topic else None
    return (leader.epoch, leader.broker) if leader else (-1, -1)


def offsets_by_two(client: ClusterClient, partitions: Collection[Partition], point: Point, *, within_s: float) -> Led:
    """A second broker confirms missing leaders.

    Partitions with a silent leader are in neither part.
    """
    found = led_offsets(client, partitions, point, within_s=within_s)
    if not found.leaderless:
        return found
    try:
        without = leaderless(client, found.leaderless)
        more = led_offsets(client, found.leaderless - without, point, within_s=within_s)
    except RemoteFault:  # keep what is known
        return found
    return Led({**found.offsets, **more.offsets}, without)

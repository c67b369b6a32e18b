"""Partitions that nobody leads, by two brokers: one may be cut off from the controllers, and not from us. What it says
of leaders is old, and whoever decides by it would leave behind what has one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.offsets import Led, Point, led_offsets
from mirror_core.model.errors import RemoteFault
from mirror_core.model.names import Partition


def leaderless(client: ClusterClient, partitions: Collection[Partition]) -> frozenset[Partition]:
    """Those that nobody leads. Two brokers are asked, if there are two that answer; of each partition the answer with
    the higher leader epoch counts. A leader that does not answer is one all the same."""
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
    """`led_offsets`, but two brokers are asked whether a partition has no leader. One that has, and whose leader does
    not answer, is in neither part of what is returned."""
    found = led_offsets(client, partitions, point, within_s=within_s)
    if not found.leaderless:
        return found
    try:
        without = leaderless(client, found.leaderless)
        more = led_offsets(client, found.leaderless - without, point, within_s=within_s)
    except RemoteFault:  # what is known of the others stays known
        return found
    return Led({**found.offsets, **more.offsets}, without)

"""Who leads a partition, as far as brokers agree; and what becomes of one that is not there any more."""

from __future__ import annotations

from typing import Final

from mirror_core.copy.asking import Asked, Asking, View, Views, as_expected
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import Side, denied
from mirror_core.kafka.client import Leader
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition

_NO_ID: Final = "0" * 32


def route(replicator: PartitionReplicator, views: Views, asking: Asking) -> Asked | None:
    """Take in who leads it; None when it cannot be aligned now."""
    partition, assigned = replicator.partition, replicator.assigned
    for view, client, expected in (
        (views.source, asking.source, assigned.source_topic_id),
        (views.destination, asking.destination, assigned.destination_topic_id),
    ):
        cluster, topic = client.name, view.cluster.topics.get(partition.topic)
        if partition.topic in view.cluster.denied:
            replicator.fail(denied(Side.of(client), partition, "DESCRIBE"), None, FailureKind.DENIED)
            return None
        if why := _disputed(view, partition, expected):
            replicator.lose(f"cluster {cluster}: {why}")
            return None
        if topic is None or partition.index not in topic.partitions:
            kind = FailureKind.GONE if client is asking.source else FailureKind.REPLACED
            replicator.fail(
                f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None, kind
            )
            return None
        if topic.id != expected:
            replicator.fail(
                f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
                f"(topic id {topic.id}, was {expected})",
                None,
                FailureKind.RECREATED if client is asking.source else FailureKind.REPLACED,
            )
            return None
    from_leader = views.source.cluster.topics[partition.topic].partitions[partition.index]
    to_leader = views.destination.cluster.topics[partition.topic].partitions[partition.index]
    _doubt_who_told(replicator, asking, from_leader, to_leader)
    replicator.route(from_leader.broker, from_leader.epoch, to_leader.broker)
    away = [
        client.name
        for broker, client in ((from_leader.broker, asking.source), (to_leader.broker, asking.destination))
        if broker < 0
    ]
    if away:
        replicator.lose(f"cluster {away[0]}: no leader for {partition}: bring the brokers of its replicas back")
        return None
    same = assigned.proved_epoch == to_leader.epoch
    return Asked(
        partition,
        from_leader.broker,
        from_leader.epoch,
        replicator.vouched_epoch,
        to_leader.broker,
        unvouched=replicator.aligned is None and not assigned.answered,
        proved_end=assigned.proved_end if same else None,
    )


def _doubt_who_told(replicator: PartitionReplicator, asking: Asking, source: Leader, destination: Leader) -> None:
    """Where the leader that is told has turned out to be none before, or has led before the one that we know, the
    broker that tells it may be behind. It tells the truth of a partition without a leader."""
    misled = replicator.misled if replicator.losses > 1 else None
    known = replicator.source_broker, replicator.source_epoch
    if source.epoch < replicator.source_epoch or (
        misled == asking.source.name and known == (source.broker, source.epoch)
    ):
        asking.source.ask_another()
    if misled == asking.destination.name and replicator.destination_broker == destination.broker:
        asking.destination.ask_another()


def _disputed(view: View, partition: Partition, expected: str) -> str:
    """Why nobody knows yet that the topic is gone which one broker calls so; empty when it is. Another broker may still
    know it: either is behind. One that does not answer may. And who does not know a partition of it is behind: nothing
    takes partitions away from a topic, as long as it has the same id."""
    if as_expected(view.cluster, partition, expected):
        return ""
    name, topic = partition.topic, view.cluster.topics.get(partition.topic)
    same = topic is not None and topic.id == expected
    if same and expected == _NO_ID:
        return ""
    if same or expected in view.heard.ids.get(name, ()):
        return f"its brokers do not all say the same of topic {name}"
    return view.heard.undecided(name) if view.heard.silent else ""

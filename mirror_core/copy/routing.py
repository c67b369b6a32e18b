"""Resolves leaders from metadata, and handles partitions that no longer exist."""

from __future__ import annotations

from typing import Final

from mirror_core.copy.asking import Asked, Asking, View, Views, as_expected
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import Side, denied
from mirror_core.kafka.client import ClusterClient, Leader
from mirror_core.model.acl import Operation
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition

_NO_ID: Final = "0" * 32


def route(replicator: PartitionReplicator, views: Views, asking: Asking) -> Asked | None:
    partition, assigned, replaced = replicator.partition, replicator.assigned, FailureKind.REPLACED
    for view, client, expected, gone, anew in (
        (views.source, asking.source, assigned.source_topic_id, FailureKind.GONE, FailureKind.RECREATED),
        (views.destination, asking.destination, assigned.destination_topic_id, replaced, replaced),
    ):
        if not _is_there(replicator, view, client, expected, gone, anew):
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


def _is_there(
    replicator: PartitionReplicator,
    view: View,
    client: ClusterClient,
    expected: str,
    gone: FailureKind,
    anew: FailureKind,
) -> bool:
    """Whether the cluster has it, in the topic with the `expected` id. Otherwise tells the replicator why."""
    partition = replicator.partition
    cluster, topic = client.name, view.cluster.topics.get(partition.topic)
    if partition.topic in view.cluster.denied:
        replicator.fail(denied(Side.of(client), partition, Operation.DESCRIBE), None, FailureKind.DENIED)
        return False
    if why := _disputed(view, partition, expected):
        replicator.lose(f"cluster {cluster}: {why}")
        return False
    if topic is None or partition.index not in topic.partitions:
        replicator.fail(f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None, gone)
        return False
    if topic.id != expected:
        replicator.fail(
            f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
            f"(topic id {topic.id}, was {expected})",
            None,
            anew,
        )
        return False
    return True


def _doubt_who_told(replicator: PartitionReplicator, asking: Asking, source: Leader, destination: Leader) -> None:
    """Marks a broker's metadata as stale: it names a leader that was none before, or an older epoch.

    A partition without a leader is reported truthfully.
    """
    misled = replicator.misled if replicator.losses > 1 else None
    known = replicator.source_broker, replicator.source_epoch
    if source.epoch < replicator.source_epoch or (
        misled == asking.source.name and known == (source.broker, source.epoch)
    ):
        asking.source.ask_another()
    if misled == asking.destination.name and replicator.destination_broker == destination.broker:
        asking.destination.ask_another()


def _disputed(view: View, partition: Partition, expected: str) -> str:
    """Why it is open whether the topic is gone; "" when that is certain.

    Another broker may still know it: one of them is stale. A broker that does not respond may know it. And a broker
    that misses only the partition is stale: topics never lose partitions while they keep their id.
    """
    if as_expected(view.cluster, partition, expected):
        return ""
    name, topic = partition.topic, view.cluster.topics.get(partition.topic)
    same = topic is not None and topic.id == expected
    if same and expected == _NO_ID:
        return ""
    if same or expected in view.heard.ids.get(name, ()):
        return f"its brokers do not all say the same of topic {name}"
    return view.heard.undecided(name) if view.heard.silent else ""

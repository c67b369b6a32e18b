"""Resolves leaders from metadata, and handles partitions that no longer exist."""

from __future__ import annotations

from typing import Final

from mirror_core.copy.asking import BothMetadata, LogEndRequest, LogEndRequests, VerifiedMetadata, has_expected_topic
from mirror_core.copy.partition import PartitionReplicator
from mirror_core.copy.words import ClusterSide, format_denied
from mirror_core.kafka.client import ClusterClient, Leader
from mirror_core.model.acl import Operation
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import Partition

_NO_TOPIC_ID: Final = "0" * 32


def resolve_leaders(
    replicator: PartitionReplicator, metadata: BothMetadata, requests: LogEndRequests
) -> LogEndRequest | None:
    partition, assigned, replaced = replicator.partition, replicator.assigned, FailureKind.REPLACED
    for side, client, expected, gone, recreated in (
        (metadata.source, requests.source, assigned.source_topic_id, FailureKind.GONE, FailureKind.RECREATED),
        (metadata.destination, requests.destination, assigned.destination_topic_id, replaced, replaced),
    ):
        if not _check_topic(replicator, side, client, expected, gone, recreated):
            return None
    from_leader = metadata.source.cluster.topics[partition.topic].partitions[partition.index]
    to_leader = metadata.destination.cluster.topics[partition.topic].partitions[partition.index]
    _distrust_stale_broker(replicator, requests, from_leader, to_leader)
    replicator.set_leaders(from_leader.broker, from_leader.epoch, to_leader.broker)
    offline = [
        client.name
        for broker, client in ((from_leader.broker, requests.source), (to_leader.broker, requests.destination))
        if broker < 0
    ]
    if offline:
        replicator.mark_lost(f"cluster {offline[0]}: no leader for {partition}: bring the brokers of its replicas back")
        return None
    same_leader = assigned.verified_epoch == to_leader.epoch
    return LogEndRequest(
        partition,
        from_leader.broker,
        from_leader.epoch,
        replicator.agreed_epoch,
        to_leader.broker,
        end_unverified=replicator.aligned is None and not assigned.all_answered,
        verified_end=assigned.verified_end if same_leader else None,
    )


def _check_topic(
    replicator: PartitionReplicator,
    side: VerifiedMetadata,
    client: ClusterClient,
    expected: str,
    gone: FailureKind,
    recreated: FailureKind,
) -> bool:
    """Whether the cluster has it, in the topic with the `expected` id. Otherwise tells the replicator why."""
    partition = replicator.partition
    cluster, topic = client.name, side.cluster.topics.get(partition.topic)
    if partition.topic in side.cluster.denied:
        replicator.fail(
            format_denied(ClusterSide.from_client(client), partition, Operation.DESCRIBE), None, FailureKind.DENIED
        )
        return False
    if reason := _explain_dispute(side, partition, expected):
        replicator.mark_lost(f"cluster {cluster}: {reason}")
        return False
    if topic is None or partition.index not in topic.partitions:
        replicator.fail(f"cluster {cluster}: {partition} does not exist (any more); was the topic deleted?", None, gone)
        return False
    if topic.id != expected:
        replicator.fail(
            f"cluster {cluster}, topic {partition.topic}: it was deleted and created anew under the same name "
            f"(topic id {topic.id}, was {expected})",
            None,
            recreated,
        )
        return False
    return True


def _distrust_stale_broker(
    replicator: PartitionReplicator, requests: LogEndRequests, source: Leader, destination: Leader
) -> None:
    """Marks a broker's metadata as stale: it names a leader that was none before, or an older epoch.

    A partition without a leader is reported truthfully.
    """
    misleading = replicator.misleading_cluster if replicator.loss_count > 1 else None
    known_leader = replicator.source_broker, replicator.source_epoch
    if source.epoch < replicator.source_epoch or (
        misleading == requests.source.name and known_leader == (source.broker, source.epoch)
    ):
        requests.source.mark_metadata_stale()
    if misleading == requests.destination.name and replicator.destination_broker == destination.broker:
        requests.destination.mark_metadata_stale()


def _explain_dispute(side: VerifiedMetadata, partition: Partition, expected: str) -> str:
    """Why it is open whether the topic is gone; "" when that is certain.

    Another broker may still know it: one of them is stale. A broker that does not respond may know it. And a broker
    that misses only the partition is stale: topics never lose partitions while they keep their id.
    """
    if has_expected_topic(side.cluster, partition, expected):
        return ""
    name, topic = partition.topic, side.cluster.topics.get(partition.topic)
    has_same_id = topic is not None and topic.id == expected
    if has_same_id and expected == _NO_TOPIC_ID:
        return ""
    if has_same_id or expected in side.topic_ids.ids.get(name, ()):
        return f"its brokers do not all say the same of topic {name}"
    return side.topic_ids.format_undecided(name) if side.topic_ids.unreachable_brokers else ""

"""May a replay write saved records to its topics now?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Refused
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import Mirror, PartitionState, TopicAccess
from mirror_core.model.names import ClusterIdentity, ClusterName
from mirror_core.model.text import format_items
from mirror_core.state.mirror_link import read_states
from mirror_core.state.state_records import State

REFUSAL: Final = "salvaged records not written"


def check_replay_login(config: Config) -> None:
    """BadRequest for a mirror's configuration, which has separate control and data logins."""
    if split_login_clusters := sorted(c.name for c in config.clusters.values() if dict(c.control) != dict(c.data)):
        raise BadRequest(
            f"{config.path}: cluster {split_login_clusters[0]}: this is a mirror's configuration, whose"
            " control principal no fence stops. Give --config a file with a login of its own, without `data:`"
        )


def find_replay_target(
    config: Config, name: str, cluster_id: str | None, partitions: Mapping[str, int]
) -> tuple[ClusterIdentity, dict[str, str]]:
    """The cluster's identity and the topics' ids. `partitions`: minimum partition count by topic.

    Raises Refused with all reasons, or Indeterminate if a cluster's state cannot be read.
    """
    cluster = config.cluster(name)
    with ClusterClient(cluster) as client:
        topics = find_existing_topics(client, partitions)
    identities = {other.name: _read_identity(other) for other in config.clusters.values()}
    target = identities[cluster.name]
    states = dict(read_states(config))
    if unread := [str(error) for error in states.values() if isinstance(error, MirrorError)]:
        listed = format_items(unread)
        raise Indeterminate(
            f"{REFUSAL}: it is not known whether cluster {name} is fenced, and what is mirrored to it:{listed}"
        )
    mirrors = [
        (state, mirror)
        for name, state in sorted(states.items())
        if isinstance(state, State)
        for mirror in state.mirrors.values()
        if mirror.destination_id == identities[name].id
    ]
    reasons = [
        *_check_identity(target, cluster_id, [mirror for _, mirror in mirrors]),
        *(
            Finding("replay_one_cluster", target.name, cluster=other.name, cluster_id=other.id)
            for other in identities.values()
            if other.id == target.id and other.name != target.name
        ),
        *_check_topics(cluster.name, topics, partitions),
        *_check_mirrors(target, partitions, mirrors),
    ]
    if reasons:
        raise Refused(REFUSAL, reasons)
    return target, {topic: topics[topic].id for topic in partitions}


def _read_identity(cluster: ClusterConfig) -> ClusterIdentity:
    with ClusterClient(cluster) as client:
        return ClusterIdentity(cluster.name, client.metadata(()).cluster_id)


def _check_identity(target: ClusterIdentity, wanted_id: str | None, mirrors: Iterable[Mirror]) -> Iterator[Finding]:
    if wanted_id is not None and wanted_id != target.id:
        yield Finding("replay_other_cluster", target.name, cluster_id=target.id, recorded_id=wanted_id, mirror="")
    for mirror in mirrors:
        for identity in (mirror.source_identity, mirror.destination_identity):
            if identity.name == target.name and identity.id != target.id:
                yield Finding(
                    "replay_other_cluster",
                    target.name,
                    cluster_id=target.id,
                    recorded_id=identity.id,
                    mirror=mirror.name,
                )


def _check_topics(
    cluster: ClusterName, topics: Mapping[str, TopicMetadata], partitions: Mapping[str, int]
) -> Iterator[Finding]:
    for topic, count in sorted(partitions.items()):
        if topic.startswith("__"):
            yield Finding("replay_internal_topic", topic)
        elif topic not in topics:
            yield Finding("replay_topic_absent", topic, cluster=cluster, needed=count)
        elif len(topics[topic].partitions) < count:
            actual = len(topics[topic].partitions)
            yield Finding("replay_few_partitions", topic, cluster=cluster, needed=count, actual=actual)


def _check_mirrors(
    target: ClusterIdentity, topics: Collection[str], mirrors: Iterable[tuple[State, Mirror]]
) -> Iterator[Finding]:
    for state, mirror in mirrors:
        statuses = state.partitions.get(mirror.name, {})
        own_topics = sorted({partition.topic for partition in statuses} & set(topics))
        if target.id == mirror.destination_id:
            yield from _check_mirror_topics(state, mirror, topics)
        if target.id in (mirror.source_id, mirror.destination_id) and own_topics:
            if run := state.active_run(mirror.name):
                yield Finding("replay_run_open", mirror.name, run=run.id, topics=own_topics)
            if target.id == mirror.source_id and mirror.name in state.pending_fences:
                yield Finding("replay_fenced", target.name, mirror=mirror.name, topics=own_topics)


def _check_mirror_topics(state: State, mirror: Mirror, topics: Collection[str]) -> Iterator[Finding]:
    statuses = state.partitions.get(mirror.name, {})
    mirrored = {partition.topic for partition, s in statuses.items() if s.state is not PartitionState.STOPPED}
    departures = state.departures.get(mirror.name, {})
    closed = {topic for topic, departure in departures.items() if departure.access is TopicAccess.CLOSED}
    for topic in sorted((mirrored | closed) & set(topics)):
        yield Finding("replay_mirror_topic", topic, cluster=mirror.destination, mirror=mirror.name)

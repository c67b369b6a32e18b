"""Which topics exist.

Without DESCRIBE, listings omit a topic as if deleted; requests by name say "denied".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import Partition
from mirror_core.rights.acl_rules import format_acl_command

_MAX_LISTED_TOPICS = 10


def find_existing_topics(client: ClusterClient, topics: Iterable[str]) -> Mapping[str, TopicMetadata]:
    """MissingPermission if one may not be described."""
    metadata = client.metadata(topics)
    if metadata.denied:
        raise describe_denied_error(client, metadata.denied)
    return metadata.topics


@dataclass(frozen=True, slots=True)
class PartitionPresence:
    absent: frozenset[Partition]
    """By two brokers, if two answer."""
    denied: Mapping[Partition, str]


def check_presence(client: ClusterClient, partitions: Collection[Partition]) -> PartitionPresence:
    absent, denied = _find_unlisted(client, partitions)
    if absent:
        client.mark_metadata_stale()
        absent, more_denied = _find_unlisted(client, absent)
        denied |= more_denied
    return PartitionPresence(absent, {p: str(describe_denied_error(client, [p.topic])) for p in denied})


def _find_unlisted(
    client: ClusterClient, partitions: Collection[Partition]
) -> tuple[frozenset[Partition], frozenset[Partition]]:
    metadata = client.metadata({p.topic for p in partitions})
    denied = frozenset(p for p in partitions if p.topic in metadata.denied)
    listed = {Partition(name, index) for name, topic in metadata.topics.items() for index in topic.partitions}
    return frozenset(partitions) - listed - denied, denied


def find_hidden_topics(client: ClusterClient, unlisted: Collection[str]) -> frozenset[str]:
    """Not describable; the others are deleted."""
    return client.metadata(unlisted).denied if unlisted else frozenset()


def get_describe_grant(client: ClusterClient, topic: str) -> tuple[str, str]:
    user = client.config.user(client.principal) or "<its principal>"
    acl = Acl(resource=Resource.TOPIC, name=topic, principal=f"User:{user}", operation=Operation.DESCRIBE)
    return user, format_acl_command(acl)


def describe_denied_error(client: ClusterClient, topics: Collection[str]) -> MissingPermission:
    names = sorted(topics)
    user, grant_command = get_describe_grant(client, names[0])
    suffix = f" and {len(names) - _MAX_LISTED_TOPICS} more" if len(names) > _MAX_LISTED_TOPICS else ""
    return MissingPermission(
        f"cluster {client.name}: {user} may not DESCRIBE {', '.join(names[:_MAX_LISTED_TOPICS])}{suffix}, so brokers do"
        f" not tell whether {'it exists' if len(names) == 1 else 'they exist'}; grant it:"
        f" `{grant_command}`; if an ACL denies it, remove that one"
    )

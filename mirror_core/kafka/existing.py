"""Which topics exist, where absence matters.

Without DESCRIBE, listings omit a topic as if deleted; requests by name say "denied".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.model.acl import Acl, Operation, Resource
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import Partition
from mirror_core.rights.acl_command import acl_command

_SHOWN = 10


def existing(client: ClusterClient, topics: Iterable[str]) -> Mapping[str, TopicView]:
    """MissingPermission if one may not be described."""
    view = client.metadata(topics)
    if view.denied:
        raise undescribed(client, view.denied)
    return view.topics


@dataclass(frozen=True, slots=True)
class Presence:
    absent: frozenset[Partition]
    """By two brokers, if two answer."""
    denied: Mapping[Partition, str]


def presence(client: ClusterClient, partitions: Collection[Partition]) -> Presence:
    """A second broker confirms absence: the first may be cut off from the controllers."""
    absent, denied = _unlisted(client, partitions)
    if absent:
        client.ask_another()
        absent, more = _unlisted(client, absent)
        denied |= more
    return Presence(absent, {p: str(undescribed(client, [p.topic])) for p in denied})


def _unlisted(
    client: ClusterClient, partitions: Collection[Partition]
) -> tuple[frozenset[Partition], frozenset[Partition]]:
    view = client.metadata({p.topic for p in partitions})
    denied = frozenset(p for p in partitions if p.topic in view.denied)
    listed = {Partition(name, index) for name, topic in view.topics.items() for index in topic.partitions}
    return frozenset(partitions) - listed - denied, denied


def hidden_among(client: ClusterClient, unlisted: Collection[str]) -> frozenset[str]:
    """Not describable; the other unlisted ones are deleted."""
    return client.metadata(unlisted).denied if unlisted else frozenset()


def undescribed(client: ClusterClient, topics: Collection[str]) -> MissingPermission:
    """Names the missing grant."""
    names = sorted(topics)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    user = client.config.user(client.principal) or "<its principal>"
    right = Acl(resource=Resource.TOPIC, name=names[0], principal=f"User:{user}", operation=Operation.DESCRIBE)
    return MissingPermission(
        f"cluster {client.name}: {user} may not DESCRIBE {', '.join(names[:_SHOWN])}{more}, so brokers do not tell "
        f"whether {'it exists' if len(names) == 1 else 'they exist'}; grant it: "
        f"`{acl_command(right)}`; if an ACL denies it, remove that one"
    )

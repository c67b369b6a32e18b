"""Which topics exist, where their absence decides something. Brokers tell nothing of a topic that one may not DESCRIBE:
a listing leaves it out, as if it were gone, and asked by its name they say that it is denied."""

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
    """Those of these topics that exist. MissingPermission if this principal may not DESCRIBE one of them."""
    view = client.metadata(topics)
    if view.denied:
        raise undescribed(client, view.denied)
    return view.topics


@dataclass(frozen=True, slots=True)
class Presence:
    """Which of some partitions a cluster has. What is neither absent nor denied is there, with a leader or without."""

    absent: frozenset[Partition]
    """There is no such topic or partition, by two brokers, if there are two that answer."""
    denied: Mapping[Partition, str]
    """Brokers do not tell whether they exist, and why."""


def presence(client: ClusterClient, partitions: Collection[Partition]) -> Presence:
    """Ask a second broker for what the first one does not know: one that is cut off from the controllers may not know
    it yet."""
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
    """Of topics that a listing has left out: those that this principal may not DESCRIBE. The others are gone."""
    return client.metadata(unlisted).denied if unlisted else frozenset()


def undescribed(client: ClusterClient, topics: Collection[str]) -> MissingPermission:
    """The error for topics that this client's principal may not DESCRIBE, with the grant that is missing."""
    names = sorted(topics)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    user = client.config.user(client.principal) or "<its principal>"
    right = Acl(resource=Resource.TOPIC, name=names[0], principal=f"User:{user}", operation=Operation.DESCRIBE)
    return MissingPermission(
        f"cluster {client.name}: {user} may not DESCRIBE {', '.join(names[:_SHOWN])}{more}, so brokers do not tell "
        f"whether {'it exists' if len(names) == 1 else 'they exist'}; grant it: "
        f"`{acl_command(right)}`; if an ACL denies it, remove that one"
    )

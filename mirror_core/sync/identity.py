"""Whether the clusters that answer are those that the mirror was created for."""

from __future__ import annotations

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import Refused
from mirror_core.state.link import Link


def check_identity(link: Link, source: ClusterClient, destination: ClusterClient) -> None:
    """A cluster id is for life: another one under the same name is another cluster, with other topics."""
    _check(link, (source, link.mirror.source_id), (destination, link.mirror.destination_id))


def check_source(link: Link, source: ClusterClient) -> None:
    """The same of the source alone: after a failover its address may lead to the new primary, which is not to be
    fenced, and of which nothing is to be taken away."""
    _check(link, (source, link.mirror.source_id))


def _check(link: Link, *sides: tuple[ClusterClient, str]) -> None:
    reasons = [
        f"cluster {client.name} is {found} now, and was {recorded} when the mirror was created: correct the address in "
        f"{link.config.path}, or delete the mirror and create it anew"
        for client, recorded in sides
        if (found := client.metadata(()).cluster_id) != recorded
    ]
    if reasons:
        raise Refused(f"mirror {link.mirror.name}: not the clusters it was created for", reasons)

"""Are the clusters that answer those that the mirror was created for?"""

from __future__ import annotations

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import MirrorError, NotLetIn, Refused, Unreachable
from mirror_core.model.limits import LIMITS
from mirror_core.state.link import Link


def check_identity(link: Link, source: ClusterClient, destination: ClusterClient) -> None:
    """Another cluster id under the same name is another cluster."""
    _check(link, (source, link.mirror.source_id), (destination, link.mirror.destination_id))


def check_source(link: Link, source: ClusterClient) -> None:
    """Its address may lead to the new primary, which must not be fenced."""
    _check(link, (source, link.mirror.source_id))


def source_answers(link: Link) -> bool:
    try:
        return _answers(link)
    except MirrorError:
        return False


def source_is_there(link: Link) -> bool:
    """True also where our login is refused: the source may take writes."""
    try:
        return _answers(link)
    except Unreachable as error:
        return isinstance(error, NotLetIn)
    except MirrorError:
        return True


def _answers(link: Link) -> bool:
    with ClusterClient(link.source, timeout_s=LIMITS.answering_cluster_s) as source:
        return source.metadata(()).cluster_id == link.mirror.source_id


def _check(link: Link, *sides: tuple[ClusterClient, str]) -> None:
    reasons = [
        f"cluster {client.name} is {found} now, and was {recorded} when the mirror was created: correct the address in "
        f"{link.config.path}, or delete the mirror and create it anew"
        for client, recorded in sides
        if (found := client.metadata(()).cluster_id) != recorded
    ]
    if reasons:
        raise Refused(f"mirror {link.mirror.name}: not the clusters it was created for", reasons)

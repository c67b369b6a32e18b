"""Are the clusters that answer those that the mirror was created for?"""

from __future__ import annotations

from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import ConnectionRejected, MirrorError, Refused, Unreachable
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.mirror_link import MirrorLink


def check_cluster_ids(link: MirrorLink, source: ClusterClient, destination: ClusterClient) -> None:
    """Another cluster id under the same name is another cluster."""
    _check_ids(link, (source, link.mirror.source_id), (destination, link.mirror.destination_id))


def check_source_id(link: MirrorLink, source: ClusterClient) -> None:
    """Its address may lead to the new primary, which must not be fenced."""
    _check_ids(link, (source, link.mirror.source_id))


def is_source_answering(link: MirrorLink) -> bool:
    try:
        return _has_recorded_id(link)
    except MirrorError:
        return False


def is_source_alive(link: MirrorLink) -> bool:
    """True also where our login is refused: the source may take writes."""
    try:
        return _has_recorded_id(link)
    except Unreachable as error:
        return isinstance(error, ConnectionRejected)
    except MirrorError:
        return True


def _has_recorded_id(link: MirrorLink) -> bool:
    with ClusterClient(link.source, timeout_s=TIMEOUTS.liveness_probe_s) as source:
        return source.metadata(()).cluster_id == link.mirror.source_id


def _check_ids(link: MirrorLink, *sides: tuple[ClusterClient, str]) -> None:
    reasons = [
        f"cluster {client.name} is {current_id} now, and was {recorded_id} when the mirror was created: correct the"
        f" address in {link.config.path}, or delete the mirror and create it anew"
        for client, recorded_id in sides
        if (current_id := client.metadata(()).cluster_id) != recorded_id
    ]
    if reasons:
        raise Refused(f"mirror {link.mirror.name}: not the clusters it was created for", reasons)

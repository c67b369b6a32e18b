"""Queries clusters upstream which mirrors copy into them, to find circles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from mirror_core.decide.mirror_topology import (
    InboundMirror,
    MirrorCircle,
    explain_topic_circle,
    find_circles,
    list_inbound_mirrors,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.findings import Finding
from mirror_core.model.logs import get_logger
from mirror_core.model.names import ClusterName
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State
from mirror_core.state.state_topic import read_state

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleFindings:
    circles: tuple[MirrorCircle, ...]
    not_asked: Mapping[ClusterName, str]

    @property
    def doubts(self) -> tuple[Finding, ...]:
        return tuple(Finding("circles_unknown", cluster, reason=why) for cluster, why in sorted(self.not_asked.items()))


def search_circles(link: MirrorLink, recorded: Collection[str]) -> CircleFindings:
    mirror, topics, unlisted = link.mirror, set(recorded), dict[ClusterName, str]()
    for cluster, cluster_id in ((mirror.source, mirror.source_id), (mirror.destination, mirror.destination_id)):
        try:
            topics |= _list_topics(link, cluster, cluster_id)
        except MirrorError as error:
            unlisted[cluster] = str(error)
    result = _search_upstream(link, topics, list_topics=True)
    if mirror.source in unlisted:
        result.not_asked.setdefault(mirror.source, unlisted[mirror.source])
    return CircleFindings(circles=result.circles, not_asked=result.not_asked)


def refuse_topics_in_circles(link: MirrorLink, topics: Collection[str]) -> dict[str, str]:
    """Other mirrors would bring them back. With the reason."""
    if not topics:
        return {}
    result = _search_upstream(link, set(topics), list_topics=False)
    for cluster, why in result.not_asked.items():
        _log.info("not known whether new topics come back over cluster %s: %s", cluster, why, mirror=link.mirror.name)
    return {
        topic: explain_topic_circle(link.mirror, topic, circle) for circle in result.circles for topic in circle.topics
    }


@dataclass(frozen=True, slots=True)
class _SearchResult:
    circles: tuple[MirrorCircle, ...]
    not_asked: dict[ClusterName, str]


def _search_upstream(link: MirrorLink, topics: set[str], *, list_topics: bool) -> _SearchResult:
    """Nearest to the source first, as long as topics may come from there."""
    inbound, unanswered = dict[str, tuple[InboundMirror, ...]](), dict[str, tuple[ClusterName, str]]()
    while True:
        search = find_circles(link.mirror, topics, inbound)
        unasked = {upstream_id: name for upstream_id, name in search.not_asked.items() if upstream_id not in unanswered}
        if not unasked:
            return _SearchResult(search.circles, dict(unanswered.values()))
        for cluster_id, cluster in unasked.items():
            try:
                if list_topics:
                    topics |= _list_topics(link, cluster, cluster_id)
                inbound[cluster_id] = tuple(_read_inbound(link, cluster, cluster_id))
            except MirrorError as error:
                unanswered[cluster_id] = (cluster, str(error))


def _read_inbound(link: MirrorLink, cluster: ClusterName, cluster_id: str) -> Iterator[InboundMirror]:
    state: State = read_state(link.config.cluster(cluster), timeout_s=TIMEOUTS.other_cluster_s)
    yield from list_inbound_mirrors(cluster_id, state.mirrors.values(), state.partitions, link.mirror.name)


def _list_topics(link: MirrorLink, cluster: ClusterName, cluster_id: str) -> set[str]:
    with ClusterClient(link.config.cluster(cluster), timeout_s=TIMEOUTS.other_cluster_s) as client:
        view = client.metadata()
    if view.cluster_id != cluster_id:
        raise BadRequest(f"another cluster, {view.cluster_id}, answers at its address")
    return set(view.topics)

"""Asks clusters upstream which mirrors copy into them, to find circles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from mirror_core.decide.mirror_circles import (
    InboundMirror,
    MirrorCircle,
    circle_doubt,
    find_circles,
    inbound_mirrors,
    topic_in_circle,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.errors import BadRequest, MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.logs import logger
from mirror_core.model.names import ClusterName
from mirror_core.state.link import Link
from mirror_core.state.records import State
from mirror_core.state.topic import read_state

_log = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleFindings:
    circles: tuple[MirrorCircle, ...]
    not_asked: Mapping[ClusterName, str]

    @property
    def doubts(self) -> tuple[str, ...]:
        return tuple(circle_doubt(cluster, why) for cluster, why in sorted(self.not_asked.items()))


def search_circles(link: Link, recorded: Collection[str]) -> CircleFindings:
    mirror, topics, unlisted = link.mirror, set(recorded), dict[ClusterName, str]()
    for cluster, cluster_id in ((mirror.source, mirror.source_id), (mirror.destination, mirror.destination_id)):
        try:
            topics |= _list_topics(link, cluster, cluster_id)
        except MirrorError as error:
            unlisted[cluster] = str(error)
    found = _search(link, topics, list_topics=True)
    if mirror.source in unlisted:
        found.not_asked.setdefault(mirror.source, unlisted[mirror.source])
    return CircleFindings(circles=found.circles, not_asked=found.not_asked)


def refuse_topics_in_circles(link: Link, topics: Collection[str]) -> dict[str, str]:
    """New topics that other mirrors would bring back, with the reason."""
    if not topics:
        return {}
    found = _search(link, set(topics), list_topics=False)
    for cluster, why in found.not_asked.items():
        _log.info("not known whether new topics come back over cluster %s: %s", cluster, why, mirror=link.mirror.name)
    return {topic: topic_in_circle(link.mirror, topic, one) for one in found.circles for topic in one.topics}


@dataclass(frozen=True, slots=True)
class _Search:
    circles: tuple[MirrorCircle, ...]
    not_asked: dict[ClusterName, str]


def _search(link: Link, topics: set[str], *, list_topics: bool) -> _Search:
    """Nearest to the source first, as long as topics may come from there."""
    inbound, silent = dict[str, tuple[InboundMirror, ...]](), dict[str, tuple[ClusterName, str]]()
    while True:
        found = find_circles(link.mirror, topics, inbound)
        unasked = {one: name for one, name in found.not_asked.items() if one not in silent}
        if not unasked:
            return _Search(found.circles, dict(silent.values()))
        for cluster_id, cluster in unasked.items():
            try:
                if list_topics:
                    topics |= _list_topics(link, cluster, cluster_id)
                inbound[cluster_id] = tuple(_inbound(link, cluster, cluster_id))
            except MirrorError as error:
                silent[cluster_id] = (cluster, str(error))


def _inbound(link: Link, cluster: ClusterName, cluster_id: str) -> Iterator[InboundMirror]:
    state: State = read_state(link.config.cluster(cluster), timeout_s=LIMITS.other_cluster_s)
    yield from inbound_mirrors(cluster_id, state.mirrors.values(), state.partitions, link.mirror.name)


def _list_topics(link: Link, cluster: ClusterName, cluster_id: str) -> set[str]:
    with ClusterClient(link.config.cluster(cluster), timeout_s=LIMITS.other_cluster_s) as client:
        view = client.metadata()
    if view.cluster_id != cluster_id:
        raise BadRequest(f"another cluster, {view.cluster_id}, answers at its address")
    return set(view.topics)

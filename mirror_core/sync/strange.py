from __future__ import annotations

from collections.abc import Collection

from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.offsets import Point, known_offsets, list_points
from mirror_core.model.errors import MirrorError
from mirror_core.model.mirror import FailureKind
from mirror_core.model.names import MirrorName, Partition
from mirror_core.state.link import Link
from mirror_core.state.records import State


def wider_than(destination: ClusterClient, there: TopicView, width: int) -> tuple[str, FailureKind] | None:
    if len(there.partitions) <= width:
        return None
    return (
        f"{_where(destination, there)} has {len(there.partitions)} partitions, the source's has {width}: keys would go "
        "elsewhere; delete the destination's topic, or exclude it"
    ), FailureKind.OCCUPIED


def recorded_source_ids(link: Link, state: State) -> dict[str, set[str]]:
    found = dict[str, set[str]]()
    for status in state.partitions.get(link.mirror.name, {}).values():
        found.setdefault(status.partition.topic, set()).add(status.source_topic_id)
    return found


def made_anew(link: Link, recorded: Collection[str], source: TopicView) -> tuple[str, FailureKind] | None:
    if not recorded or source.id in recorded:
        return None
    return (
        f"cluster {link.source.name}: topic {source.name} was deleted and created anew under the same name (topic id "
        f"{source.id}, was {min(recorded)}), and the copy is of the old one: `mirrorbook mirror recover "
        f"{link.mirror.name} --topics {source.name}` shows what can be done"
    ), FailureKind.RECREATED


class Strange:
    """Conflicts of topics that are not recorded as the mirror's."""

    def __init__(self, link: Link, state: State, destination: ClusterClient, views: Collection[TopicView]) -> None:
        self._mirror, self._destination = link.mirror.name, destination
        names = {view.name for view in views}
        self._known: dict[str, list[tuple[MirrorName, str]]] = {}
        for mirror, statuses in state.partitions.items() if names else ():
            ids = dict.fromkeys((s.partition.topic, s.destination_topic_id) for s in statuses.values())
            for topic, topic_id in ids:
                if topic in names:
                    self._known.setdefault(topic, []).append((mirror, topic_id))
        self._held = _held(destination, [view for view in views if self._by_record(view) is None])

    def problem(self, there: TopicView) -> tuple[str, FailureKind] | None:
        return self._by_record(there) or self._by_what_it_holds(there)

    def _by_record(self, there: TopicView) -> tuple[str, FailureKind] | None:
        where = _where(self._destination, there)
        for mirror, recorded in self._known.get(there.name, ()):
            if mirror == self._mirror:
                return (
                    f"{where} was deleted and created anew (id {there.id}, recorded {recorded}): "
                    f"`mirrorbook mirror recover {mirror} --topics {there.name}` shows what can be done"
                ), FailureKind.REPLACED
            if recorded == there.id:
                return f"{where} belongs to mirror {mirror}: exclude it from one of the two", FailureKind.OCCUPIED
        return None

    def _by_what_it_holds(self, there: TopicView) -> tuple[str, FailureKind] | None:
        where, held = _where(self._destination, there), self._held[there.name]
        if isinstance(held, MirrorError):
            words = f"{where} is not this mirror's, and whether it is empty could not be seen: {held}"
            return words, FailureKind.REFUSED  # retried: a leader may be away for a moment
        records, ends = held
        if ends:
            return (
                f"{where} already holds {records} records that this mirror did not write "
                f"(log ends add up to {ends}): delete or rename it, or exclude it from the mirror"
            ), FailureKind.OCCUPIED
        return None


def _where(destination: ClusterClient, there: TopicView) -> str:
    return f"destination topic {there.name} on cluster {destination.name}"


def _held(destination: ClusterClient, views: Collection[TopicView]) -> dict[str, tuple[int, int] | MirrorError]:
    """Records and summed log ends, or why unknown. Waits once for all."""
    partitions = [Partition(view.name, index) for view in views for index in view.partitions]
    try:
        ends, starts = list_points(destination, partitions, [Point.LOG_END, Point.START]).values()
    except MirrorError as error:
        return {**dict.fromkeys((view.name for view in views), error), **_seen(destination, views)}
    found = dict[str, tuple[int, int] | MirrorError]()
    for view in views:
        mine = [Partition(view.name, index) for index in view.partitions]
        found[view.name] = (sum(ends[p] - starts[p] for p in mine), sum(ends[p] for p in mine))
    return found


def _seen(destination: ClusterClient, views: Collection[TopicView]) -> dict[str, tuple[int, int] | MirrorError]:
    partitions = [Partition(view.name, index) for view in views for index in view.partitions]
    try:
        known = known_offsets(destination, partitions, Point.LOG_END).keys()
    except MirrorError:
        return {}
    seen = [view for view in views if all(Partition(view.name, index) in known for index in view.partitions)]
    return _held(destination, seen) if len(seen) < len(views) else {}

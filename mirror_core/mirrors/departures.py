"""What becomes of topics that leave a mirror, once no task can append to them; and of those that return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from mirror_core.decide.mirror_change import list_leaving_topics, list_releasable_topics
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.topic_existence import check_presence
from mirror_core.model.mirror import PartitionState, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import Offset, Partition
from mirror_core.model.timing import now_ms
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from mirror_core.state.writer import StateWriter
from mirror_core.sync.acl_sync import apply_promotion


def to_stopped(status: PartitionStatus, lmo: Offset | None) -> PartitionStatus:
    events = (PartitionEvent.STOP, PartitionEvent.LMO_RECORDED)
    is_stopping = status.state is PartitionState.STOPPING  # it leaves the mirror
    return replace(status, state=apply_events(status.state, *events[is_stopping:]), lmo=lmo)


def to_started(status: PartitionStatus) -> PartitionStatus:
    last_event = PartitionEvent.FAIL if status.reason else PartitionEvent.ALIGNED
    return replace(status, state=apply_events(status.state, PartitionEvent.START, last_event), lmo=None)


def finish_departures(link: MirrorLink, writer: StateWriter) -> list[str]:
    """Releases what may be released, and forgets the partitions of topics that have left. May be repeated.

    The caller owns the mirror's state. A topic is released only after no task can append to it. Returns what could not
    be done about settings and rights.
    """
    state, mirror = writer.state, writer.state.mirrors[link.mirror.name]
    statuses = state.partitions.get(mirror.name, {})
    departures = dict(state.departures.get(mirror.name, {}))
    releasable = list_releasable_topics(mirror, statuses, departures.values())
    disputed = _find_disputed_topics(link, releasable)
    finished = releasable - disputed
    lines = [f"topic {topic}: not finished yet: brokers do not agree whether it exists" for topic in sorted(disputed)]
    if not finished:
        return lines
    for topic in finished - departures.keys():  # created by a plan that was made before its filter changed
        departures[topic] = TopicDeparture(
            mirror=mirror.name, topic=topic, access=TopicAccess.CLOSED, since_ms=now_ms()
        )
    ended = {
        topic: tuple(s for p, s in sorted(statuses.items()) if p.topic == topic and s.destination_topic_id)
        or departures[topic].statuses
        for topic in finished
    }
    lines += _release_topics(link, writer, [departures[topic] for topic in finished], ended)
    records = list[StateRecord | Tombstone]()
    for topic in sorted(finished):
        done = replace(departures[topic], is_done=True, statuses=ended[topic])
        if ended[topic]:
            records.append(done)
        elif topic in state.departures.get(mirror.name, {}):
            records.append(Tombstone(done))
        records += (Tombstone(PartitionRecord(mirror.name, s)) for p, s in statuses.items() if p.topic == topic)
        settings = state.topic_settings.get((mirror.name, topic))
        if settings and (done.access is TopicAccess.RELEASED or not ended[topic]):
            records.append(Tombstone(settings))
    writer.put(*records)
    return lines


def _find_disputed_topics(link: MirrorLink, topics: Collection[str]) -> frozenset[str]:
    """Missing from one broker's listing, and not known to be absent: taken for absent, they would stay closed."""
    if not topics:
        return frozenset()
    with ClusterClient(link.destination) as client:
        unlisted = frozenset(topics) - client.metadata(topics).topics.keys()
        presence = check_presence(client, [Partition(topic, 0) for topic in unlisted])
    return unlisted - {partition.topic for partition in presence.absent}


def _release_topics(
    link: MirrorLink,
    writer: StateWriter,
    departures: Iterable[TopicDeparture],
    ended: Mapping[str, tuple[PartitionStatus, ...]],
) -> list[str]:
    """Only topics that are still the mirror's copies."""
    released = [d for d in departures if d.access is TopicAccess.RELEASED and ended[d.topic]]
    if not released:
        return []
    with ClusterClient(link.destination) as client:
        present = client.metadata([d.topic for d in released]).topics
    lines = list[str]()
    for with_rights in (True, False):
        topics = [
            d.topic
            for d in released
            if d.with_rights is with_rights
            and d.topic in present
            and present[d.topic].id in {s.destination_topic_id for s in ended[d.topic]}
        ]
        if topics:
            rows = apply_promotion(link, writer, topics, with_rights=with_rights)
            lines += [f"{row.subject}: {row.reason}" for row in rows if not row.done and row.reason]
    return lines


def list_stopping_partitions(state: State, link: MirrorLink) -> Collection[Partition]:
    """Partitions of leaving topics that have no LMO yet."""
    mirror = state.mirrors[link.mirror.name]
    statuses = state.partitions.get(mirror.name, {})
    leaving = list_leaving_topics(mirror, statuses)
    return [p for p, s in statuses.items() if p.topic in leaving and s.state is not PartitionState.STOPPED]

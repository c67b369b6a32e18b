"""What becomes of topics that leave a mirror, and of those that return."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mirror_core.dataplane.epoch_planner import to_stopped
from mirror_core.decide.mirror_change import list_leaving_topics, list_releasable_topics
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient, TopicMetadata
from mirror_core.kafka.topic_existence import check_presence
from mirror_core.model.mirror import PartitionState, PartitionStatus, TopicAccess, TopicDeparture
from mirror_core.model.names import MirrorName, Offset, Partition
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.state_records import PartitionRecord, State, StateRecord, Tombstone
from mirror_core.state.writer import StateWriter
from mirror_core.sync.acl_sync import apply_promotion
from mirror_core.sync.promotion_configs import is_unlisted_row


def to_started(status: PartitionStatus) -> PartitionStatus:
    last_event = PartitionEvent.FAIL if status.reason else PartitionEvent.ALIGNED
    return replace(
        status, state=apply_events(status.state, PartitionEvent.START, last_event), lmo=None, deleted_until=None
    )


def finish_departures(link: MirrorLink, writer: StateWriter) -> list[str]:
    """Releases topics, and forgets the partitions of those that have left. May be repeated.

    The caller owns the mirror's state. A topic is released only after no task can append to it. Returns what could not
    be done about settings and rights.
    """
    state, mirror = writer.state, writer.state.mirrors[link.mirror.name]
    statuses = state.partitions.get(mirror.name, {})
    departures = dict(state.departures.get(mirror.name, {}))
    releasable = list_releasable_topics(mirror, statuses, departures.values())
    if not releasable:
        return []
    with ClusterClient(link.destination) as client:
        copies = list_copies(client, releasable)
    leaving = [
        departures.get(topic) or _make_closed_departure(mirror.name, topic, writer.now_ms())
        for topic in sorted(releasable - copies.disputed)
    ]
    ended = {d.topic: _list_ended(statuses, d) for d in leaving}
    lines, unlisted = _release_topics(link, writer, leaving, ended, copies.listed)
    lines += [
        f"topic {topic}: not finished yet: brokers do not agree whether it exists"
        for topic in sorted(copies.disputed | unlisted)
    ]
    records = list[StateRecord | Tombstone]()
    for departure in leaving:
        if departure.topic not in unlisted:
            done = replace(departure, is_done=True, statuses=ended[departure.topic])
            records += _list_departed_records(state, done, statuses)
    if records:
        writer.put(*records)
    return lines


def explain_unenforced(destination: ClusterClient) -> str:
    """Why applications may write topics that are kept closed; empty: ACLs prevent it."""
    acls = describe_acls(destination)
    return acls.configured.no_acl_reason if isinstance(acls, AuthorizerOff) else ""


def drop_leaving_topics(
    link: MirrorLink, writer: StateWriter, topics: Collection[str], ends: Mapping[Partition, Offset]
) -> None:
    """For an unplanned failover: these topics are the mirror's no longer, and nobody is given them. May be repeated.

    The caller owns the mirror's state, and no task can append. `ends`: log ends, where known. What is to be released
    stays so.
    """
    state, name = writer.state, link.mirror.name
    statuses = state.partitions.get(name, {})
    stopped = {
        p: s if s.state is PartitionState.STOPPED else to_stopped(s, ends.get(p))
        for p, s in statuses.items()
        if p.topic in topics
    }
    records = list[StateRecord | Tombstone]()
    for topic in sorted({p.topic for p in stopped}):
        departure = state.departures.get(name, {}).get(topic) or _make_closed_departure(name, topic, writer.now_ms())
        ended = _list_ended(stopped, departure)
        is_done = departure.access is TopicAccess.CLOSED
        records += _list_departed_records(state, replace(departure, is_done=is_done, statuses=ended), statuses)
    if records:
        writer.put(*records)


def _make_closed_departure(mirror: MirrorName, topic: str, now_ms: int) -> TopicDeparture:
    """A plan from before its filter changed has created the topic."""
    return TopicDeparture(mirror=mirror, topic=topic, access=TopicAccess.CLOSED, since_ms=now_ms)


def _list_ended(
    statuses: Mapping[Partition, PartitionStatus], departure: TopicDeparture
) -> tuple[PartitionStatus, ...]:
    recorded = (s for p, s in sorted(statuses.items()) if p.topic == departure.topic and s.destination_topic_id)
    return tuple(recorded) or departure.statuses


def _list_departed_records(
    state: State, departure: TopicDeparture, statuses: Mapping[Partition, PartitionStatus]
) -> Iterator[StateRecord | Tombstone]:
    mirror, topic = departure.mirror, departure.topic
    if departure.statuses:
        yield departure
    elif topic in state.departures.get(mirror, {}):
        yield Tombstone(departure)
    yield from (Tombstone(PartitionRecord(mirror, s)) for p, s in statuses.items() if p.topic == topic)
    settings, is_released = state.topic_settings.get((mirror, topic)), departure.access is TopicAccess.RELEASED
    if settings and ((is_released and departure.is_done) or not departure.statuses):
        yield Tombstone(settings)


@dataclass(frozen=True, slots=True)
class ListedCopies:
    """All decisions go by one listing of the destination."""

    listed: Mapping[str, TopicMetadata]
    disputed: frozenset[str]
    """Not listed, but possibly present: if treated as absent, they would stay closed."""


def list_copies(client: ClusterClient, topics: Collection[str]) -> ListedCopies:
    listed = client.metadata(topics).topics
    unlisted = frozenset(topics) - listed.keys()
    presence = check_presence(client, [Partition(topic, 0) for topic in unlisted]) if unlisted else None
    absent = {partition.topic for partition in presence.absent} if presence else set()
    return ListedCopies(listed, unlisted - absent)


def _release_topics(
    link: MirrorLink,
    writer: StateWriter,
    departures: Iterable[TopicDeparture],
    ended: Mapping[str, tuple[PartitionStatus, ...]],
    listed: Mapping[str, TopicMetadata],
) -> tuple[list[str], frozenset[str]]:
    """Only topics that are still the mirror's copies. Also returns those that a later listing has left out."""
    released = [
        d
        for d in departures
        if d.access is TopicAccess.RELEASED
        and d.topic in listed
        and listed[d.topic].id in {s.destination_topic_id for s in ended[d.topic]}
    ]
    lines, unlisted = list[str](), set[str]()
    for with_rights in (True, False):
        if topics := [d.topic for d in released if d.with_rights is with_rights]:
            rows = apply_promotion(link, writer, topics, with_rights=with_rights)
            lines += [f"{row.subject}: {row.reason}" for row in rows if not row.done and row.reason]
            unlisted |= {row.subject for row in rows if is_unlisted_row(row)}
    return lines, frozenset(unlisted)


def list_stopping_partitions(state: State, link: MirrorLink) -> Collection[Partition]:
    """Partitions of leaving topics that have no LMO yet."""
    mirror = state.mirrors[link.mirror.name]
    statuses = state.partitions.get(mirror.name, {})
    leaving = list_leaving_topics(mirror, statuses)
    return [p for p, s in statuses.items() if p.topic in leaving and s.state is not PartitionState.STOPPED]

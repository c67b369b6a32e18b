"""What another choice of topics and groups means for a mirror.

A topic that leaves is dropped first, and where mirroring ended (LMO) is recorded: it may return if it still ends there.
After a split both mirrors share the producer id: a late task of the first is refused by the sequences of the second
(ADR 0001).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from mirror_core.decide.consistency_groups import TopicPatternGroups
from mirror_core.decide.filters import build_group_filter, build_topic_filter
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.mirror import (
    FILTER_NAMES,
    Mirror,
    PartitionState,
    PartitionStatus,
    TopicAccess,
    TopicDeparture,
    has_listed_all,
)
from mirror_core.model.names import (
    HEARTBEAT_TOPIC_PREFIX,
    ClusterName,
    MirrorName,
    Offset,
    Partition,
    compile_name_pattern,
    get_heartbeat_topic,
)
from mirror_core.model.run import shorten_hash
from mirror_core.model.source_observation import SourceObservation
from mirror_core.model.text import format_count

ENDED_STATES: Final = frozenset({PartitionState.STOPPING, PartitionState.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterChange:
    """What an operator asks for. None: as it is."""

    topics: tuple[str, ...] | None = None
    exclude_topics: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    exclude_groups: tuple[str, ...] | None = None
    principals: tuple[str, ...] | None = None
    exclude_principals: tuple[str, ...] | None = None
    exclude_rights: tuple[str, ...] | None = None
    exclude_settings: tuple[str, ...] | None = None
    replication_factor: str | None = None
    access: TopicAccess | None = None
    """What becomes of topics that leave; without another filter, of those that were kept closed."""
    with_rights: bool = True

    @property
    def has_filters(self) -> bool:
        return bool(self._list_filters())

    def apply(self, mirror: Mirror) -> Mirror:
        return _drop_paused(replace(mirror, **self._list_filters()))

    def _list_filters(self) -> dict[str, Any]:
        filters = {name: getattr(self, name) for name in FILTER_NAMES}
        return {name: patterns for name, patterns in filters.items() if patterns is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInputs:
    mirror: Mirror
    statuses: Mapping[Partition, PartitionStatus]
    departures: Mapping[str, TopicDeparture]
    source_topics: Collection[str] = ()
    source_groups: Collection[str] | None = None
    right_starts: tuple[str, ...] | None = ()
    right_stops: tuple[str, ...] | None = ()
    destination_ids: Mapping[str, str]
    destination_ends: Mapping[Partition, Offset]
    """Log ends of departed topics."""
    has_failed_over: bool = False
    unenforced: str = ""
    """Why the destination keeps nobody from writing topics that are kept closed. Empty: it does."""
    problems: tuple[str, ...] = ()
    """Why topics that start cannot be copied, and circles."""
    together: TopicPatternGroups = ()
    """Topics that a split must not tear apart."""


class ChangePlan(JsonDocument, frozen=True, kw_only=True):
    """What `mirror change` would do. Groups and rights are null where the source's are not known."""

    mirror: str
    hash: str
    topics: tuple[str, ...]
    exclude_topics: tuple[str, ...]
    groups: tuple[str, ...]
    exclude_groups: tuple[str, ...]
    principals: tuple[str, ...]
    exclude_principals: tuple[str, ...]
    exclude_rights: tuple[str, ...]
    exclude_settings: tuple[str, ...]
    replication_factor: str
    starts: tuple[str, ...]
    """Topics to be created, or adopted."""
    returns: tuple[str, ...]
    """Topics that were carried before, and go on from their LMO."""
    stops: tuple[str, ...]
    released: tuple[str, ...]
    """Topics that applications get, of those that stop or that were kept closed."""
    kept_closed: tuple[str, ...]
    """Topics that nobody gets, after this change."""
    kept: tuple[str, ...]
    unfinished: tuple[str, ...]
    """Topics that an earlier change has left half way: this one finishes them."""
    warnings: tuple[str, ...]
    group_starts: tuple[str, ...] | None
    group_stops: tuple[str, ...] | None
    right_starts: tuple[str, ...] | None
    """ACLs that the next sync creates by the new filters."""
    right_stops: tuple[str, ...] | None
    """Copied ACLs that the next sync withdraws."""
    with_rights: bool
    refused: tuple[str, ...]


class SplitPlan(JsonDocument, frozen=True, kw_only=True):
    """What `mirror split` would do."""

    mirror: str
    into: str
    hash: str
    topics: tuple[str, ...]
    """Filters of the new mirror, as `exclude_topics`. This one excludes `topics` from then on."""
    exclude_topics: tuple[str, ...]
    moved: tuple[str, ...]
    departed: tuple[str, ...]
    """Topics that had left this mirror before, and may return to the new one only."""
    kept: tuple[str, ...]
    refused: tuple[str, ...]


PlanT = TypeVar("PlanT", ChangePlan, SplitPlan)


def list_leaving_topics(mirror: Mirror, statuses: Mapping[Partition, PartitionStatus]) -> frozenset[str]:
    """Recorded topics that the mirror no longer carries. A way home keeps what it was made for."""
    if mirror.failback_run:
        return frozenset()
    carried = build_topic_filter(mirror)
    return frozenset(topic for topic in {p.topic for p in statuses} if topic not in carried)


def _drop_paused(mirror: Mirror) -> Mirror:
    # Should they return, they are copied.
    carried = build_topic_filter(mirror)
    return replace(mirror, paused_topics=tuple(topic for topic in mirror.paused_topics if topic in carried))


def list_paused_topics(mirror: Mirror, statuses: Iterable[Partition]) -> list[str]:
    return sorted({p.topic for p in statuses} & {*mirror.paused_topics}) if mirror.paused_topics else []


def explain_leaving_refusal(mirror: Mirror, statuses: Mapping[Partition, PartitionStatus]) -> Iterator[Finding]:
    """An unplanned failover may begin: it moves what stays."""
    if leaving := sorted(list_leaving_topics(mirror, statuses)):
        yield Finding("topics_leaving", mirror.name, topics=leaving, source=mirror.source)


def select_staying(
    mirror: Mirror, statuses: Mapping[Partition, PartitionStatus]
) -> Mapping[Partition, PartitionStatus]:
    """For an unplanned failover. Topics that leave stay closed on the destination."""
    leaving = list_leaving_topics(mirror, statuses)
    return {p: status for p, status in statuses.items() if p.topic not in leaving} if leaving else statuses


def apply_current_filters(
    mirror: Mirror, statuses: Mapping[Partition, PartitionStatus], observation: SourceObservation | None
) -> SourceObservation | None:
    """The filters may have changed since: what left is not missing, and what is new was not listed."""
    if observation is None or mirror.failback_run:
        return observation
    if not has_listed_all(mirror.topic_filters, observation.listed_by):
        observation = replace(observation, listed_ms=None)
    carried, recorded = build_topic_filter(mirror), {p.topic for p in statuses}
    kept = tuple(t for t in observation.topics if t.topic in recorded or t.topic in carried)
    return observation if len(kept) == len(observation.topics) else replace(observation, topics=kept)


def plan_change(change: FilterChange, inputs: ChangeInputs) -> ChangePlan:
    mirror = inputs.mirror
    changed = change.apply(mirror)
    recorded = {p.topic for p in inputs.statuses}
    leaving_now = list_leaving_topics(mirror, inputs.statuses)
    was_carried, carried = build_topic_filter(mirror), build_topic_filter(changed)
    # A topic that another one stands in the way of was never copied: nothing of it is left.
    copied = {p.topic for p, s in inputs.statuses.items() if s.destination_topic_id}
    stops = sorted(topic for topic in recorded - leaving_now if topic not in carried)
    closed = sorted(topic for topic, departure in inputs.departures.items() if departure.access is TopicAccess.CLOSED)
    matching = {topic for topic in inputs.source_topics if topic in carried and topic not in was_carried}
    returns = sorted(topic for topic in inputs.departures if topic in carried and inputs.departures[topic].is_done)
    new = sorted(matching - recorded - set(returns)) if change.has_filters else []
    reopened = [topic for topic in closed if not change.has_filters and inputs.departures[topic].is_done]
    is_release = change.access is TopicAccess.RELEASED
    released = sorted({t for t in stops if t in copied} | set(reopened)) if is_release else []
    group_starts, group_stops = _compare_groups(mirror, changed, inputs.source_groups)
    unfinished = _list_unfinished(inputs)
    newly_closed = {t for t in stops if t in copied} if change.access is TopicAccess.CLOSED else set[str]()
    kept_closed = sorted((set(closed) | newly_closed) - set(released) - set(returns))
    plan = ChangePlan(
        mirror=mirror.name,
        hash="",
        topics=changed.topics,
        exclude_topics=changed.exclude_topics,
        groups=changed.groups,
        exclude_groups=changed.exclude_groups,
        principals=changed.principals,
        exclude_principals=changed.exclude_principals,
        exclude_rights=changed.exclude_rights,
        exclude_settings=changed.exclude_settings,
        replication_factor=changed.replication_factor,
        starts=tuple(new),
        returns=tuple(returns),
        stops=tuple(stops),
        released=tuple(released),
        kept_closed=tuple(kept_closed),
        kept=tuple(sorted(recorded - leaving_now - set(stops))),
        unfinished=tuple(unfinished),
        warnings=tuple(_list_warnings(inputs, kept_closed)),
        group_starts=group_starts,
        group_stops=group_stops,
        right_starts=inputs.right_starts,
        right_stops=inputs.right_stops,
        with_rights=change.with_rights,
        refused=(),
    )
    reasons = tuple(_list_refusals(change, changed, inputs, plan))
    return replace_plan(plan, hash=_hash_plan(plan, inputs), refused=reasons)


def _list_warnings(inputs: ChangeInputs, kept_closed: Collection[str]) -> Iterator[str]:
    if kept_closed and inputs.unenforced:
        yield (
            f"{inputs.mirror.destination} {inputs.unenforced}: nothing keeps applications from writing"
            f" {join_limited(kept_closed)} there, and a topic that was written to cannot return"
        )


def replace_plan(plan: PlanT, **changes: object) -> PlanT:
    from msgspec import structs

    return structs.replace(plan, **changes)


def _compare_groups(
    mirror: Mirror, changed: Mirror, groups: Collection[str] | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    if groups is None:
        return None, None
    before, after = build_group_filter(mirror), build_group_filter(changed)
    starts = sorted(group for group in groups if group in after and group not in before)
    stops = sorted(group for group in groups if group in before and group not in after)
    return tuple(starts), tuple(stops)


def _hash_plan(plan: ChangePlan, inputs: ChangeInputs) -> str:
    """Excludes offsets, which always move, and what is kept."""
    mirror = inputs.mirror
    content = [
        [mirror.name, mirror.source_id, mirror.destination_id],
        [[getattr(filters, name) for name in FILTER_NAMES] for filters in (mirror, plan)],
        [plan.starts, plan.returns, plan.stops, plan.released, plan.kept_closed, plan.unfinished],
        plan.with_rights,
        sorted((topic, inputs.destination_ids.get(topic, "")) for topic in {*plan.stops, *plan.returns}),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _list_refusals(change: FilterChange, changed: Mirror, inputs: ChangeInputs, plan: ChangePlan) -> Iterator[str]:
    mirror = inputs.mirror
    if inputs.has_failed_over and change.has_filters:
        yield (
            f"a failover has moved applications to cluster {mirror.destination}: filters can be changed again after"
            f" a failback; use `mirrorbook failback plan {mirror.name}`"
        )
    if plan.unfinished:
        if changed != mirror or _has_other_access(change, inputs, plan):
            yield _explain_unfinished(mirror, plan.unfinished)
        return
    if changed == mirror and not plan.released:
        yield "this changes nothing: the mirror has these filters already"
    if not changed.topics:
        yield "no topics are left: `mirrorbook mirror stop` ends a mirror"
    leaving_copies = sorted({*plan.stops} & {p.topic for p, s in inputs.statuses.items() if s.destination_topic_id})
    if leaving_copies and change.access is None:
        yield (
            f"{join_limited(leaving_copies)} {'leaves' if len(leaving_copies) == 1 else 'leave'}: say what becomes of"
            " the copy, --release (applications may write it) or --keep-closed (nobody may)"
        )
    for topic in plan.returns:
        yield from explain_changed_copy(
            inputs.departures[topic], inputs.destination_ids.get(topic), inputs.destination_ends, mirror.destination
        )
    yield from inputs.problems


def _list_unfinished(inputs: ChangeInputs) -> list[str]:
    leaving = list_leaving_topics(inputs.mirror, inputs.statuses)
    return sorted(leaving | {topic for topic, departure in inputs.departures.items() if not departure.is_done})


def _explain_unfinished(mirror: Mirror, topics: Collection[str]) -> str:
    return (
        f"an earlier change is not finished: {join_limited(topics)} still {'leaves' if len(topics) == 1 else 'leave'}."
        f" `mirrorbook mirror change {mirror.name}`, without options, finishes it; then repeat this one"
    )


def _has_other_access(change: FilterChange, inputs: ChangeInputs, plan: ChangePlan) -> bool:
    if change.access is None:
        return False
    recorded = {inputs.departures[topic] for topic in plan.unfinished if topic in inputs.departures}
    choices = {_get_choice(departure) for departure in recorded}
    return bool(plan.released) or choices != {(change.access, change.with_rights)}


def explain_other_choice(change: FilterChange, departures: Collection[TopicDeparture]) -> Iterator[str]:
    """Recorded filters may be somebody else's, who chose otherwise for the topics that left."""
    newest_ms = max((departure.since_ms for departure in departures), default=0)
    chosen = {d for d in departures if d.since_ms == newest_ms}
    choice = change.access, change.with_rights or change.access is TopicAccess.CLOSED
    if change.access is None or choice in {_get_choice(departure) for departure in chosen} or not chosen:
        return
    access_texts = {TopicAccess.RELEASED: "released", TopicAccess.CLOSED: "kept closed"}
    recorded = [
        f"{d.topic} ({access_texts[d.access]}{'' if d.with_rights else ', without rights'})"
        for d in sorted(chosen, key=lambda d: d.topic)
    ]
    yield (
        "the mirror has these filters already, by a change that chose otherwise for the topics that left:"
        f" {join_limited(recorded)}. Closed ones can be released by a change of nothing else"
    )


def _get_choice(departure: TopicDeparture) -> tuple[TopicAccess, bool]:
    return departure.access, departure.with_rights or departure.access is TopicAccess.CLOSED


def explain_changed_copy(
    departure: TopicDeparture, topic_id: str | None, ends: Mapping[Partition, Offset], destination: ClusterName
) -> Iterator[str]:
    location = f"cluster {destination}, topic {departure.topic}"
    if topic_id not in {status.destination_topic_id for status in departure.statuses}:
        yield (
            f"{location}: the copy that left the mirror is gone or was replaced. Delete it there, and delete the mirror"
            " and create it anew; or let the mirror leave the topic out"
        )
        return
    for status in departure.statuses:
        end = ends.get(status.partition)
        if status.lmo is None or end is None:
            yield f"cluster {destination}, {status.partition}: whether it still ends where mirroring ended is not known"
        elif end != status.lmo:
            yield (
                f"cluster {destination}, {status.partition}: mirroring ended at {status.lmo}, it ends at {end} now:"
                " others have written there, so it is the applications' topic. Let the mirror leave it out"
            )


def explain_wrong_hash(plan: ChangePlan | SplitPlan, plan_hash: str | None) -> Iterator[str]:
    if plan_hash not in (None, plan.hash):
        yield (
            f"the plan {shorten_hash(plan_hash or '')} is out of date, the current one is {shorten_hash(plan.hash)}:"
            " review it"
        )


def format_plan(plan: ChangePlan, mirror: Mirror) -> Iterator[str]:
    destination = mirror.destination
    topics: tuple[tuple[str, Collection[str]], ...] = (
        (f"start, created on {destination} or adopted if empty there", plan.starts),
        ("return, and go on from where mirroring ended", plan.returns),
        ("stop", plan.stops),
        (f"of these or closed before, released on {destination}", plan.released),
        (f"kept closed on {destination}: nobody may write, and no failover promotes them", plan.kept_closed),
        ("finish an earlier change", plan.unfinished),
    )
    groups: tuple[tuple[str, Collection[str] | None], ...] = (
        ("groups that start", plan.group_starts),
        ("groups that stop; what was committed for them stays", plan.group_stops),
    )
    right_changes: tuple[tuple[str, Collection[str] | None], ...] = (
        (f"rights that the next sync creates on {destination}", plan.right_starts),
        (f"copied rights that the next sync withdraws on {destination}", plan.right_stops),
    )
    yield f"topics {' '.join(plan.topics)}, excluded {' '.join(plan.exclude_topics) or 'none'}"
    yield f"groups {' '.join(plan.groups) or 'none'}, excluded {' '.join(plan.exclude_groups) or 'none'}"
    yield f"rights of {' '.join(plan.principals) or 'none'}, excluded {' '.join(plan.exclude_principals) or 'none'}"
    yield f"rights excluded: {', '.join(plan.exclude_rights) or 'none'}"
    yield f"settings excluded: {' '.join(plan.exclude_settings) or 'none'}"
    yield f"replication factor of topics that are created: {plan.replication_factor}"
    for noun, rows in (("topic", topics), ("group", groups), ("right", right_changes)):
        for text, names in rows:
            if names is None:
                yield f"{text}: not known now"
            elif names:
                yield f"{text}: {format_count(len(names), noun)}: {join_limited(names)}"
    if plan.released:
        rights = "the rights that were staged for a failover" if plan.with_rights else "no rights: grant them by hand"
        yield f"released means: the source's settings, and {rights}. Applications may write from the LMO on"
    yield from plan.warnings
    yield f"kept as {'it is' if len(plan.kept) == 1 else 'they are'}: {format_count(len(plan.kept), 'topic')}"
    yield f"plan {plan.hash}"


def split_filters(mirror: Mirror, into: MirrorName, topics: tuple[str, ...]) -> tuple[Mirror, Mirror]:
    """What stays, and the new mirror. A topic passes the filters of one of them at most."""
    excluded = tuple(dict.fromkeys((*mirror.exclude_topics, *topics)))
    remaining, new = replace(mirror, exclude_topics=excluded), replace(mirror, name=into, topics=topics)
    return _drop_paused(remaining), _drop_paused(new)


def plan_split(into: MirrorName, topics: tuple[str, ...], inputs: ChangeInputs) -> SplitPlan:
    """`inputs.source_topics`: those that pass the new mirror's filters, at least."""
    mirror = inputs.mirror
    _, new = split_filters(mirror, into, topics)
    carried, returnable = build_topic_filter(new), build_topic_filter(replace(new, exclude_topics=()))
    recorded = {p.topic for p in inputs.statuses}
    plan = SplitPlan(
        mirror=mirror.name,
        into=into,
        hash="",
        topics=topics,
        exclude_topics=new.exclude_topics,
        moved=tuple(sorted(topic for topic in recorded if topic in carried)),
        departed=tuple(sorted(topic for topic in inputs.departures if topic in returnable)),
        kept=tuple(sorted(topic for topic in recorded if topic not in carried)),
        refused=(),
    )
    ids = sorted((str(p), s.source_topic_id, s.destination_topic_id) for p, s in inputs.statuses.items())
    content = [
        [mirror.name, mirror.source_id, mirror.destination_id, mirror.created_ms, into],
        [[getattr(filters, name) for name in FILTER_NAMES] for filters in (mirror, new)],
        [plan.moved, plan.departed, plan.kept, ids],
    ]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return replace_plan(plan, hash=digest, refused=tuple(_list_split_refusals(plan, inputs)))


def _list_split_refusals(plan: SplitPlan, inputs: ChangeInputs) -> Iterator[str]:
    mirror = inputs.mirror
    if inputs.has_failed_over:
        yield (
            f"a failover has moved applications to cluster {mirror.destination}: it can be split after a failback; use"
            f" `mirrorbook failback plan {mirror.name}`"
        )
    if unfinished := _list_unfinished(inputs):
        yield _explain_unfinished(mirror, unfinished)
    if not plan.moved:
        yield f"{join_limited(plan.topics)}: the mirror carries no such topic"
    elif not {*plan.kept} - {get_heartbeat_topic(mirror.name)}:
        yield f"{join_limited(plan.topics)}: that is all that the mirror carries, and nothing would be left of it"
    carried = build_topic_filter(mirror)
    others = [t for t in inputs.source_topics if t not in carried and t != get_heartbeat_topic(MirrorName(plan.into))]
    if others:
        yield (
            f"{join_limited(sorted(others))} on {mirror.source} would start, too, and the mirror does not carry"
            f" {'it' if len(others) == 1 else 'them'}: give narrower --topics"
        )
    yield from _list_torn_groups(plan, inputs.together)
    yield from inputs.problems


def _list_torn_groups(plan: SplitPlan, groups: TopicPatternGroups) -> Iterator[str]:
    kept = [topic for topic in plan.kept if not topic.startswith(HEARTBEAT_TOPIC_PREFIX)]
    for expressions in groups:
        patterns = [compile_name_pattern("together:", expression) for expression in expressions]
        if all(any(pattern.matches(t) for pattern in patterns for t in topics) for topics in (plan.moved, kept)):
            yield (
                f"topics {', '.join(expressions)} belong together, and would fail over apart: move all of them, or take"
                f" them out of `together` of {plan.mirror} in your configuration, on every host"
            )


def format_split(plan: SplitPlan, mirror: Mirror) -> Iterator[str]:
    yield f"mirror {plan.into}: topics {' '.join(plan.topics)}, excluded {' '.join(plan.exclude_topics) or 'none'}"
    yield f"groups and rights: both mirrors as now; {mirror.name} excludes {' '.join(plan.topics)} from then on"
    rows = (
        (f"move to {plan.into}, at their offsets", plan.moved),
        (f"have left {mirror.name} before, and may return to {plan.into} only", plan.departed),
        (f"stay with {mirror.name}", plan.kept),
    )
    for text, names in rows:
        if names:
            yield f"{text}: {format_count(len(names), 'topic')}: {join_limited(names)}"
    yield f"plan {plan.hash}"


def build_departures(change: FilterChange, plan: ChangePlan, inputs: ChangeInputs, now_ms: int) -> list[TopicDeparture]:
    access = change.access or TopicAccess.CLOSED
    departures = [
        TopicDeparture(
            mirror=inputs.mirror.name, topic=topic, access=access, with_rights=change.with_rights, since_ms=now_ms
        )
        for topic in plan.stops
    ]
    departures += [
        replace(inputs.departures[topic], access=access, with_rights=change.with_rights, is_done=False)
        for topic in plan.released
        if topic not in plan.stops
    ]
    return departures


def list_releasable_topics(
    mirror: Mirror, statuses: Mapping[Partition, PartitionStatus], departures: Iterable[TopicDeparture]
) -> frozenset[str]:
    """Leaving topics that no task can write any more, and departed ones that are yet to be released."""
    leaving = list_leaving_topics(mirror, statuses)
    written = {p.topic for p, status in statuses.items() if status.state is not PartitionState.STOPPED}
    return (leaving - written) | {d.topic for d in departures if not d.is_done and d.topic not in written}


def format_topics_by_access(departures: Iterable[TopicDeparture], access: TopicAccess) -> str:
    return join_limited(list_topics_by_access(departures, access)) or "none"


def list_topics_by_access(departures: Iterable[TopicDeparture], access: TopicAccess) -> tuple[str, ...]:
    return tuple(sorted(d.topic for d in departures if d.is_done and d.access is access))


def format_leaving_topics(mirror: Mirror, topics: Collection[str]) -> str:
    if not topics:
        return "none"
    return f"{join_limited(topics)}: the next sync, or `mirrorbook mirror change {mirror.name}`, finishes that"


def warn_leaving_topics(mirror: Mirror, topics: Collection[str]) -> Iterator[Finding]:
    if topics:
        yield Finding(
            "leaving_topics_not_promoted",
            mirror.destination,
            topics=sorted(topics),
            source=mirror.source,
            mirror=mirror.name,
        )


def warn_closed_topics(mirror: Mirror, topics: Collection[str], unenforced: str) -> Iterator[Finding]:
    if topics:
        yield Finding(
            "topics_kept_closed",
            mirror.destination,
            topics=sorted(topics),
            source=mirror.source,
            unenforced=unenforced,
        )

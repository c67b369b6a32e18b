"""From a snapshot of both clusters to a failover plan, and every reason that forbids it now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from mirror_core.decide.figures import figures_of, group_figures, partition_figures, unknown_of, warnings_of
from mirror_core.decide.leaderless import LEFT, left_behind, refusals
from mirror_core.decide.loss import uncopied
from mirror_core.decide.loss_figures import NOT_MIRRORED
from mirror_core.decide.reckoning import foretold
from mirror_core.decide.recovery import COPY_IS_BAD, REMEDIES
from mirror_core.decide.ruled import unclosable
from mirror_core.decide.scope import NOTHING, Scope, lost_topics, scope_of
from mirror_core.decide.steps import planned
from mirror_core.decide.view import (
    SHOWN,
    DestinationView,
    SourceView,
    Unseen,
    View,
    barred,
    failed_of,
    healthy,
    is_healthy,
    lags_of,
    some,
    without_copy,
)
from mirror_core.model.mirror import Desired, FailureKind, PartitionState, PartitionStatus
from mirror_core.model.names import Partition, base_name
from mirror_core.model.ruling import Ruling
from mirror_core.model.run import Fact, Lasts, Mode, Plan, RunKind


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, and the reasons why it may not run; none: it may."""

    plan: Plan
    reasons: tuple[str, ...]
    scope: Scope = NOTHING
    source_seen: bool = True


def decide(view: View) -> Decision:
    return Decision(
        Plan(
            kind=RunKind.FAILOVER,
            mirror=view.mirror.name,
            mode=view.mode,
            steps=planned(
                RunKind.FAILOVER,
                view.mirror,
                view.mode,
                barred=barred(view),
            ),
            bound=bound_of(view),
            warnings=tuple(warnings_of(view)),
            unknown=tuple(unknown_of(view)),
            figures=dict(figures_of(view)),
            partitions=dict(partition_figures(view)),
            groups=dict(group_figures(view)),
            foretold=foretold(view),
            rights=UNSET if view.given is None else tuple(str(acl) for acl in view.given[:SHOWN]),
        ),
        tuple(_reasons(view)),
        scope_of(view),
        source_seen=isinstance(view.source, SourceView),
    )


def bound_of(view: View) -> tuple[Fact, ...]:
    """What an approval is bound to. Never an offset that a group has committed."""
    return tuple(_bound(view))


def broken_since(view: View, *, source_seen: bool) -> tuple[str, ...]:
    """Reasons that may arise during a run and stop it, checked before the fence and before promotion.

    The run itself holding and stopping the mirror is none, nor is a source that died.
    """
    return (*_reasons_there(view), *(_reasons_here(view) if source_seen else ()))


def changed_since(approved: Iterable[Fact], now: Iterable[Fact], *, source_seen: bool) -> tuple[str, ...]:
    """Facts that void an approval, of those that must last until promotion.

    Facts that only the source can tell are skipped if it died after fence, drain and comparison: nothing contradicts
    them, and a disaster during a planned failover must not block both sides.
    """
    lasting = {Lasts.UNTIL_PROMOTION, Lasts.WHILE_SEEN} if source_seen else {Lasts.UNTIL_PROMOTION}
    before, after = ({f.name: f.value for f in facts if f.lasts in lasting} for facts in (approved, now))
    return tuple(
        f"{name}: approved was {before.get(name, 'absent')}, now it is {after.get(name, 'absent')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


UNSEEN: Final = "unseen"
AUTHORIZER: Final = "authorizer of the source"
"""Fact name; the value is "nothing" or "fence_command" where it is not Kafka's."""
SOME: Final = 3


def _bound(view: View) -> Iterator[Fact]:
    mirror, destination = view.mirror, view.destination
    yield Fact("desired", mirror.desired)
    yield Fact("mirror", f"created {mirror.created_ms}")
    seen = destination.cluster_id if isinstance(destination, DestinationView) else UNSEEN
    yield Fact("destination", seen, Lasts.UNTIL_PROMOTION)
    topics: dict[str, list[PartitionStatus]] = {}
    for partition, status in sorted(view.statuses.items()):
        topics.setdefault(partition.topic, []).append(status)
    for name, statuses in topics.items():
        ids = sorted({f"{s.source_topic_id} -> {s.destination_topic_id}" for s in statuses})
        yield Fact(f"topic {name}", f"{len(statuses)} partition(s), {', '.join(ids)}", Lasts.UNTIL_PROMOTION)
    yield Fact(
        "failed partitions",
        digest(str(p) for p in failed_of(view) if p not in view.left or view.statuses[p].kind in COPY_IS_BAD),
        Lasts.UNTIL_PROMOTION,
    )
    yield Fact("grants", digest(sorted(view.grants)), Lasts.WHILE_SEEN)
    if view.mode is Mode.PLANNED:
        yield Fact("states", digest(f"{p}={view.statuses[p].state}" for p in sorted(view.statuses)))
        if left := left_behind(view):  # the run takes back what has a leader again
            yield Fact(LEFT, digest(map(str, left)))
        yield from _bound_to_source(view.source, view.here, {name: len(statuses) for name, statuses in topics.items()})
        return
    # A dying source answers now and then: an approval that is bound to what it says would never hold.
    yield Fact("left out", digest(sorted(lost_topics(view))), Lasts.UNTIL_PROMOTION)
    if lost := uncopied(view.statuses, view.sighting):
        yield Fact(NOT_MIRRORED, digest(f"{partition} ({lost[partition]})" for partition in sorted(lost)))
    if view.continues is not None:
        yield Fact("goes on from", view.continues)


def _bound_to_source(source: SourceView | Unseen, here: Ruling, topics: Mapping[str, int]) -> Iterator[Fact]:
    yield Fact("source", source.cluster_id if isinstance(source, SourceView) else UNSEEN, Lasts.WHILE_SEEN)
    if isinstance(source, SourceView):
        authorizer = str(here.barred(denials=False)) if here.foreign else str(source.authorizer)
        for name, topic in sorted(source.topics.items()):
            if name not in topics:
                yield Fact(f"topic {name}", f"not mirrored, {topic.id}", Lasts.WHILE_SEEN)
        for name, mirrored in topics.items():
            there = source.topics[name].partitions if name in source.topics else 0
            if there != mirrored:  # as a rule all is mirrored: ten thousand topics need no second fact each
                words = f"{there} partition(s), {mirrored} mirrored"
                yield Fact(f"topic {name} on the source", words, Lasts.WHILE_SEEN)
        yield Fact("groups", digest(sorted(source.groups)))
        yield Fact(AUTHORIZER, authorizer)


def digest(items: Iterable[str]) -> str:
    """Count, first three items, and a fingerprint of all. Callers sort the items."""
    first, count, fingerprint = list[str](), 0, hashlib.sha256()
    for item in items:
        count += 1
        fingerprint.update(f"{item}\n".encode())
        if count <= SOME:
            first.append(item)
    if not count:
        return "none"
    return f"{count}: {', '.join(first)}{', ...' if count > SOME else ''} ({fingerprint.hexdigest()[:16]})"


def _reasons(view: View) -> Iterator[str]:
    mirror = view.mirror
    if view.active_run:
        yield f"run {view.active_run} holds this mirror: resume or abort it first"
    if mirror.desired is Desired.STOPPED:
        resume = f"; if applications are home: `mirrorbook failback resume {base_name(mirror.name)}` does the rest"
        rest = resume if mirror.homecoming else ""
        yield f"mirror {mirror.name} is stopped: it was failed over already, or never started{rest}"
    if mirror.begins and view.mode is Mode.PLANNED:
        yield (
            f"failback {mirror.homecoming} has not made all of mirror {mirror.name}, which does not know yet what "
            f"rights were withdrawn on {mirror.source}: `mirrorbook failback resume {base_name(mirror.name)}` first"
        )
    if not view.statuses:
        yield "nothing is mirrored yet: no partition is recorded; run `mirrorbook replicate` first"
    unready = [p for p, s in sorted(view.statuses.items()) if s.state in _UNREADY]
    if unready and view.mode is Mode.PLANNED:
        yield f"initial copy not finished: {some(unready)}; wait for the data plane to align them"
    if view.mode is Mode.PLANNED:
        yield from _uncopied_reasons(view)
    yield from _side_reasons(view)


def _uncopied_reasons(view: View) -> Iterator[str]:
    source, mirror = view.source, view.mirror
    by_topic: dict[str, list[Partition]] = {}
    for partition in sorted(without_copy(view)):
        gone = isinstance(source, SourceView) and partition.topic not in source.topics.keys() | source.hidden.topics
        if not gone and not is_healthy(view.statuses[partition]):
            by_topic.setdefault(partition.topic, []).append(partition)
    for topic, lacking in by_topic.items():
        remedy = REMEDIES[(status := view.statuses[lacking[0]]).kind or FailureKind.OTHER]
        whole = len(lacking) == sum(p.topic == topic for p in view.statuses)
        what = f"topic {topic} has" if whole else f"{some(lacking)} {'have' if lacking[1:] else 'has'}"
        yield (
            f"{what} no copy on {mirror.destination}, so all its records would be lost: {status.reason or 'FAILED'}. "
            f"First: {remedy.first}; then `mirrorbook mirror recover {mirror.name} --topics {topic} --action "
            f"{remedy.actions[0]}`"
        )


def _side_reasons(view: View) -> Iterator[str]:
    yield from _reasons_there(view)
    yield from _reasons_here(view)


def _reasons_there(view: View) -> Iterator[str]:
    if isinstance(view.destination, Unseen):
        yield f"destination {view.mirror.destination} could not be read: {view.destination.reason}"
    else:
        yield from _destination_reasons(view, view.destination)


def _reasons_here(view: View) -> Iterator[str]:
    mirror = view.mirror
    if view.mode is Mode.UNPLANNED:
        return  # nothing that the source says, or does not say, forbids it
    if isinstance(view.source, Unseen):
        yield (
            f"source {mirror.source} could not be read, hence neither fenced nor drained: {view.source.reason}. If it "
            f"is lost: `mirrorbook failover run {mirror.name} --mode unplanned`"
        )
    else:
        yield from _source_reasons(view, view.source)


_UNREADY: Final = frozenset({PartitionState.UNKNOWN, PartitionState.LOG_ALIGNMENT})


def _destination_reasons(view: View, seen: DestinationView) -> Iterator[str]:
    if seen.cluster_id != view.mirror.destination_id:
        yield (
            f"destination {view.mirror.destination} is cluster {seen.cluster_id}, the mirror was made towards "
            f"{view.mirror.destination_id}: correct mirrorbook.yaml"
        )
    if seen.hidden.topics and view.mode is Mode.PLANNED:
        yield seen.hidden.why
    if view.mode is Mode.PLANNED and (leaderless := set(seen.leaderless) & set(healthy(view.statuses))):
        yield f"{view.mirror.destination}: no leader for {some(sorted(leaderless))}: restore their brokers"
    if view.mode is Mode.UNPLANNED:
        if view.statuses and len(lost_topics(view)) == len({p.topic for p in view.statuses}):
            yield seen.hidden.why or (
                f"none of the mirror's topics is on {view.mirror.destination} any more: there is nothing to promote"
            )
        return  # what is lost is left out, and said
    for topic, ids in _ids(view, lambda s: s.destination_topic_id):
        if topic in seen.hidden.topics:
            continue
        if topic not in seen.topics:
            yield f"topic {topic} is gone from {view.mirror.destination}: exclude it, or recover it"
        elif ids != {seen.topics[topic].id}:
            yield f"topic {topic} was recreated on {view.mirror.destination}: recover it first"


def _source_reasons(view: View, seen: SourceView) -> Iterator[str]:
    name = view.mirror.source
    yield from unclosable(view)
    if seen.cluster_id != view.mirror.source_id:
        yield (
            f"source {name} is cluster {seen.cluster_id}, the mirror was made from {view.mirror.source_id}: "
            "correct mirrorbook.yaml"
        )
    if seen.shuts_out:
        yield f"the fence would shut out more than writers on {name}: {seen.shuts_out}"
    if seen.hidden.topics:
        yield seen.hidden.why
    for topic, known in sorted(seen.topics.items()):
        missing = [i for i in range(known.partitions) if Partition(topic, i) not in view.statuses]
        if missing:
            yield (
                f"topic {topic} on {name}: partition(s) {some(missing)} are not mirrored yet: "
                "wait for the data plane to take them up, or exclude the topic"
            )
    for topic, ids in _ids(view, lambda s: s.source_topic_id):
        if topic in seen.topics and ids != {seen.topics[topic].id}:
            yield f"topic {topic} was recreated on {name}: recover it first"
    yield from refusals(view)
    if isinstance(view.destination, DestinationView):
        for partition, lag in lags_of(view):
            if lag is not None and lag < 0 and partition not in view.left:  # that one is neither drained nor compared
                yield (
                    f"{partition}: {view.mirror.destination} is {-lag} offset(s) ahead of what {name} can show: "
                    "a foreign write there, or data lost on the source"
                )


def _ids(view: View, pick: Callable[[PartitionStatus], str]) -> Iterator[tuple[str, set[str]]]:
    by_topic: dict[str, set[str]] = {}
    for partition, status in healthy(view.statuses).items():
        by_topic.setdefault(partition.topic, set()).add(pick(status))
    yield from sorted(by_topic.items())

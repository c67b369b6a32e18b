"""Plans a failback: what the old source has that the new primary never had, and what becomes of it.

"Old source" is the mirror's source, which applications left; "new primary" is its destination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mirror_core.decide import thirds
from mirror_core.decide.failover import UNSEEN, Decision, digest
from mirror_core.decide.loss_figures import NOT_MIRRORED
from mirror_core.decide.mirror_circles import MirrorCircle, circle_reasons, way_home_mirror
from mirror_core.decide.promotion import not_held
from mirror_core.decide.ruled import no_way_home
from mirror_core.decide.slipped import count, slipped_in
from mirror_core.decide.standing import failed_over, pending, words
from mirror_core.decide.steps import planned
from mirror_core.decide.strategies import CUTTING, Allowed, Log, choose, costs, objections, point, tails, wider
from mirror_core.decide.view import SHOWN, Topic, Unseen, some
from mirror_core.model.acl import Acl, Operation
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.mirror_sections import OWNER
from mirror_core.model.names import Offset, Partition, reverse_name
from mirror_core.model.ruling import KAFKAS, Ruling
from mirror_core.model.run import Fact, Mode, Plan, RunKind, Strategy
from mirror_core.model.standing import Debt
from mirror_core.rights.needed import lacking_for


@dataclass(frozen=True, slots=True)
class UnmirroredTopic:
    partitions: int
    offsets: int | None = None
    log_ends: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldSource:
    cluster_id: str
    topics: Mapping[str, Topic]
    log_ends: Mapping[Partition, Offset]
    fenced: bool
    authorizer: bool = True
    by_command: bool = False
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    sizes: Mapping[Partition, int] = field(default_factory=dict)
    replicas: Mapping[str, int] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    undemotable: tuple[str, ...] = ()
    held: frozenset[Acl] | None = None
    cluster_rights: frozenset[Operation] | None = None
    topic_rights: Mapping[str, frozenset[Operation]] = field(default_factory=dict)
    unmirrored: Mapping[str, UnmirroredTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrimary:
    cluster_id: str
    topics: Mapping[str, Topic]
    log_ends: Mapping[Partition, Offset]
    log_starts: Mapping[Partition, Offset] = field(default_factory=dict)
    sizes: Mapping[Partition, int] = field(default_factory=dict)
    undemotable: tuple[str, ...] = ()
    given: tuple[Acl, ...] = ()
    unmirrored: Mapping[str, UnmirroredTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailbackView:
    mirror: Mirror
    statuses: Mapping[Partition, PartitionStatus]
    old: OldSource | Unseen
    new: NewPrimary | Unseen
    active_runs: tuple[str, ...]
    reverse: Unseen | None = None
    allowed: Allowed = field(default_factory=Allowed)
    debt: Debt | None = None
    never_came: tuple[str, ...] = ()
    unwatched: str = ""
    owner: str = ""
    new_ruling: Ruling = KAFKAS
    beside: tuple[tuple[Mirror, frozenset[str]], ...] = ()
    beside_unseen: tuple[str, ...] = ()
    circles: tuple[MirrorCircle, ...] = ()
    circle_doubts: tuple[str, ...] = ()


def decide(view: FailbackView) -> Decision:
    """The plan, and the reasons why it may not run; none: it may."""
    strategies = _strategies(view)
    return Decision(
        Plan(
            kind=RunKind.FAILBACK,
            mirror=view.mirror.name,
            mode=Mode.PLANNED,
            steps=planned(RunKind.FAILBACK, view.mirror),
            bound=tuple(_bound(view)),
            warnings=(*_warnings(view), *thirds.warnings(view.mirror.source, view.beside, _changed(view, strategies))),
            unknown=tuple(_unknown(view)),
            figures=dict(_figures(view, strategies)),
            partitions=dict(_tail_figures(view)),
            strategies=strategies,
            discarded=_discarded(view),
        ),
        tuple(_reasons(view)),
    )


def _strategies(view: FailbackView) -> dict[str, Strategy]:
    if isinstance(view.old, Unseen):
        return {}
    return choose(view.statuses, view.old.topics, view.old.log_ends, view.allowed, _new_topics(view))


def _new_topics(view: FailbackView) -> Mapping[str, Topic]:
    return {} if isinstance(view.new, Unseen) else view.new.topics


class _Logs(Mapping[Partition, Log]):
    """Built on access: there may be tens of thousands."""

    def __init__(self, seen: OldSource | NewPrimary) -> None:
        self._seen = seen

    def __getitem__(self, partition: Partition) -> Log:
        seen = self._seen
        return Log(seen.log_starts.get(partition, Offset(0)), seen.log_ends[partition], seen.sizes.get(partition))

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._seen.log_ends)

    def __len__(self) -> int:
        return len(self._seen.log_ends)


def _bound(view: FailbackView) -> Iterator[Fact]:
    yield Fact("mirror", f"created {view.mirror.created_ms}")
    yield Fact("old source", view.old.cluster_id if isinstance(view.old, OldSource) else UNSEEN)
    yield Fact("new primary", view.new.cluster_id if isinstance(view.new, NewPrimary) else UNSEEN)
    yield Fact("last mirrored offsets", digest(f"{p}={view.statuses[p].lmo}" for p in sorted(view.statuses)))
    if isinstance(view.old, OldSource):
        # Behind the fence these do not move: what would be discarded is part of what is approved.
        yield tails_fact(_tails(view, view.old))
        yield Fact("topic ids", digest(f"{name} {t.id} {t.partitions}" for name, t in sorted(view.old.topics.items())))
        yield Fact("fenced", str(view.old.fenced))


def _reasons(view: FailbackView) -> Iterator[str]:
    mirror = view.mirror
    for run in view.active_runs:
        yield f"run {run} is under way: resume or abort it first"
    if view.reverse is not None:
        yield f"whether a run holds mirror {reverse_name(mirror.name)} is not known: {view.reverse.reason}"
    if not view.statuses:
        yield f"mirror {mirror.name} has mirrored nothing: there is nothing to come home from"
    going = sorted(p for p, s in view.statuses.items() if s.state is not PartitionState.STOPPED)
    if going:
        yield f"not failed over (not STOPPED): {some(going)}"
    elif not view.active_runs and not failed_over(view.debt):
        this = mirror.name
        way_on = f". `mirrorbook mirror start {this}` copies on; `mirrorbook failover run {this}` moves them"
        yield (
            f"no failover has ended this mirror, it was stopped: applications never left {mirror.source}"
            f"{'' if mirror.homecoming else way_on}"
        )
    if isinstance(view.old, OldSource):
        old = view.old
        yield from objections(
            view.statuses, old.topics, _Logs(old), view.allowed, mirror.source, old.compacted, _new_topics(view)
        )
        yield from (
            f"cluster {mirror.source}: {missing}, which the control principal lacks; `mirrorbook cluster check "
            f"{mirror.source}` names the grants"
            for missing in lacking_for(_strategies(view), old.cluster_rights, old.topic_rights)
        )
    for name, recorded, seen in (
        (mirror.source, mirror.source_id, view.old),
        (mirror.destination, mirror.destination_id, view.new),
    ):
        if isinstance(seen, Unseen):
            yield f"cluster {name} could not be read: {seen.reason}"
        elif seen.cluster_id != recorded:
            yield f"cluster {name} is {seen.cluster_id}, the mirror was made with {recorded}: correct mirrorbook.yaml"
        else:
            yield from (f"cluster {name}: writers cannot be kept from mirror topics: {why}" for why in seen.undemotable)
    yield from no_way_home(mirror, view.new_ruling)
    yield from circle_reasons(way_home_mirror(mirror), view.circles)
    if isinstance(view.new, NewPrimary):
        yield from _new_primary_reasons(view, view.new)


def _new_primary_reasons(view: FailbackView, new: NewPrimary) -> Iterator[str]:
    name = view.mirror.destination
    recorded: dict[str, set[str]] = {}
    for partition, status in view.statuses.items():
        if status.destination_topic_id:  # otherwise it could not be added there
            recorded.setdefault(partition.topic, set()).add(status.destination_topic_id)
    for topic in _in_the_way(view, new):
        yield (
            f"topic {topic} on {name} is not the mirror's, which never made it there, and {view.mirror.source} has one "
            "of the same name: what one of them holds has to go elsewhere, and that topic be deleted"
        )
    for topic, ids in sorted(recorded.items()):
        if topic not in new.topics:
            yield f"topic {topic} is gone from {name}: nothing could be brought home"
        elif ids != {new.topics[topic].id}:
            yield f"topic {topic} was created anew on {name}: its offsets are not those of the mirror any more"
    short = sorted(p for p, s in view.statuses.items() if s.lmo is not None and new.log_ends.get(p, s.lmo) < s.lmo)
    if short:
        yield f"{name} has lost records since the failover: it ends before the last mirrored offset in {some(short)}"


def _in_the_way(view: FailbackView, new: NewPrimary) -> list[str]:
    """Topics that both sides have independently: failback would overwrite the old source's, or fail."""
    old = {} if isinstance(view.old, Unseen) else view.old.unmirrored
    found = []
    for topic in sorted(new.unmirrored):
        there = old.get(topic)
        usable = there and there.log_ends == 0 and there.partitions <= new.unmirrored[topic].partitions
        if topic in view.never_came or (there and not usable):
            found.append(topic)
    return found


def _stay(view: FailbackView) -> list[str]:
    old = {} if isinstance(view.old, Unseen) else view.old.unmirrored
    named = sorted({*view.never_came, *old} - ({} if isinstance(view.new, Unseen) else view.new.unmirrored).keys())
    return [topic if topic not in old else f"{topic} ({_offsets(old[topic].offsets)})" for topic in named]


def _offsets(count: int | None) -> str:
    return "an unknown number of offsets" if count is None else f"{count:,} offset(s)"


def _warnings(view: FailbackView) -> Iterator[str]:
    if stay := _stay(view):
        yield (
            f"never mirrored, so no part of the way home: {some(stay)} stay(s) on {view.mirror.source} as "
            "it is, and can be written there as soon as the fence goes"
        )
    if view.unwatched:
        yield view.unwatched
    if isinstance(view.old, OldSource):
        yield from pending(view.debt, view.active_runs)
        if view.old.by_command:
            yield (
                f"{view.mirror.source} is closed to applications by its fence_command, which the first step calls "
                "again: no broker can show that"
            )
        elif not view.old.authorizer:
            yield (
                f"{view.mirror.source} cannot be fenced by Mirrorbook: an application that still writes there "
                "holds the failback up, since its records would be neither salvaged nor mirrored. Stop all producers"
            )
        elif not view.old.fenced:
            yield (
                f"{view.mirror.source} is not under this mirror's fence: the first step raises it. What is written "
                "there until then is tail, too, and makes another plan"
            )
        found = list(_tails(view, view.old).items())
        for partition, (start, end) in found[:SHOWN]:
            what = f"offsets {start} to {end - 1}"
            never = "" if partition in view.statuses else "; the mirror never had this partition"
            yield f"{partition} on {view.mirror.source}: {what} are salvaged, then discarded{never}"
        if len(found) > SHOWN:
            yield f"{len(found) - SHOWN} more partitions on {view.mirror.source} have such a tail"
        for topic, (had, has) in wider(view.old.topics, _new_topics(view)).items():
            yield (
                f"topic {topic} has {had} partitions on {view.mirror.source} and {has} on {view.mirror.destination}: "
                f"it is made anew with {has}, so that keys stay in the partitions that they have on the new primary"
            )
        yield from _given_away(view, view.old)
        gone = sorted({p.topic for p in view.statuses} - set(view.old.topics))
        if gone:
            yield f"no longer on {view.mirror.source}, to be created and copied as a whole: {some(gone)}"


def _given_away(view: FailbackView, old: OldSource) -> Iterator[str]:
    given = () if isinstance(view.new, Unseen) else view.new.given
    if old.held is not None and (unheld := not_held(given, old.held)):
        yield (
            f"nobody has these right(s) on {view.mirror.source} now, which the failover gave on "
            f"{view.mirror.destination}: {some(unheld)}. The way home gives them there, too. Were they withdrawn on "
            f"{view.mirror.source}, withdraw them on {view.mirror.destination} first"
        )


def _changed(view: FailbackView, strategies: Mapping[str, Strategy]) -> thirds.Changed | None:
    if isinstance(view.old, Unseen):
        return None
    gone = strategies.keys() - view.old.topics.keys()
    return thirds.Changed(
        anew=frozenset(gone | {topic for topic, way in strategies.items() if way is Strategy.RECREATE}),
        cut=frozenset(topic for topic, way in strategies.items() if way in CUTTING),
    )


def _unknown(view: FailbackView) -> Iterator[str]:
    yield from view.circle_doubts
    if view.beside_unseen:
        yield (
            f"{some(view.beside_unseen)}: no answer, so whether a mirror carries these topics there from "
            f"{view.mirror.source}, and what becomes of it"
        )
    if isinstance(view.old, Unseen):
        yield f"everything on {view.mirror.source}: log ends, divergent tails"
    if isinstance(view.new, Unseen):
        yield f"everything on {view.mirror.destination}"


def _figures(view: FailbackView, strategies: Mapping[str, Strategy]) -> Iterator[tuple[str, str]]:
    if view.owner:
        yield OWNER, view.owner
    if view.debt is not None:
        slipped = count(slipped_in(view.debt, view.statuses))
        yield "standing fence", "; ".join((*words(view.debt), f"{slipped} offset(s) were accepted before it stood"))
    discarded = _discarded(view)
    yield "partitions", str(len(view.statuses))
    yield "offsets to discard", "unknown" if discarded is None else str(discarded)
    if isinstance(view.old, OldSource):
        yield NOT_MIRRORED, _not_mirrored(view, view.old)
    if isinstance(view.old, Unseen) or isinstance(view.new, Unseen):
        yield "offsets to copy", "unknown"
        return
    copied: int = sum(end for p, end in view.new.log_ends.items() if p not in view.statuses)
    for partition, status in view.statuses.items():
        end = view.new.log_ends.get(partition, Offset(0))
        anew = strategies.get(partition.topic) is Strategy.RECREATE or partition.topic not in view.old.topics
        held = Offset(0) if anew else min(view.old.log_ends.get(partition, Offset(0)), point(status))
        copied += max(0, end - held)
    yield "offsets to copy", str(copied)
    yield from costs(view.statuses, _Logs(view.old), _Logs(view.new), view.old.replicas, strategies)


def _not_mirrored(view: FailbackView, old: OldSource) -> str:
    found = {p: end - start for p, (start, end) in _tails(view, old).items() if p not in view.statuses}
    if not found:
        return "none"
    named = some(f"{p} ({offsets:,} offset(s))" for p, offsets in found.items())
    return f"{len(found)} partition(s), {sum(found.values()):,} offset(s): {named}"


def _tail_figures(view: FailbackView) -> Iterator[tuple[str, str]]:
    if isinstance(view.old, OldSource):
        for partition, (start, end) in list(_tails(view, view.old).items())[:SHOWN]:
            yield str(partition), f"{end - start} offset(s) discarded, [{start}, {end})"


def _discarded(view: FailbackView) -> int | None:
    if isinstance(view.old, Unseen):
        return None
    return sum(end - start for start, end in _tails(view, view.old).values())


def tails_fact(found: Mapping[Partition, tuple[Offset, Offset]]) -> Fact:
    """Binds an approval to what is discarded; the run checks it again before it saves anything."""
    return Fact("divergent tails", digest(f"{p} [{start}, {end})" for p, (start, end) in sorted(found.items())))


def written_since(
    came_home: Mapping[Partition, PartitionStatus], ends: Mapping[Partition, Offset]
) -> dict[Partition, str]:
    """New-primary partitions written after applications left, and the offsets.

    `came_home`: of the reverse mirror. A partition that was FAILED then has a reason already: it is skipped and stays
    FAILED. `ends`: of logs that exist.
    """
    return {
        p: f"from {s.lmo} to {ends[p]}" for p, s in came_home.items() if not s.reason and ends.get(p, s.lmo) != s.lmo
    }


def _tails(view: FailbackView, old: OldSource) -> dict[Partition, tuple[Offset, Offset]]:
    return tails(view.statuses, old.topics, old.log_ends)

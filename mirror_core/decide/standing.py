"""What a mirror owes the cluster that was failed away from, and what is to be done about it now. Pure.

The state topic says what is owed (`Debt`); the cluster, when it answers, says what it has. Whoever looks may have slept
since: so it is decided once before anything is taken over, and once more afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

from mirror_core.decide import ruled, steps
from mirror_core.decide.slipped import Ranges, count, listed, shown_slip
from mirror_core.decide.view import Unseen, some
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import MirrorName, Offset, Partition, is_way_home
from mirror_core.model.offsets import NO_OFFSETS, Offsets
from mirror_core.model.ruling import Authorizer, Barred
from mirror_core.model.run import Mode, Run, RunKind, RunState
from mirror_core.model.sighting import Sighting
from mirror_core.model.standing import Debt, Owed


class Standing(StrEnum):
    """How things stand between a mirror and the cluster that was failed away from."""

    NOTHING = "nothing"
    """Nothing is owed."""
    OWED = "pending"
    """The fence is not up yet: the cluster has not answered since, or does not take it."""
    STANDS = "stands"
    """Every broker was seen to have it."""
    WATCHED = "watched"
    """Nothing of ours keeps writers out of the cluster: it is only looked at whether it takes writes."""
    LIFTING = "lifting"
    """A run was given up while the cluster was silent: its fence there is to be taken down."""


class Action(StrEnum):
    """What is to be done now."""

    NOTHING = "nothing"
    FENCE = "fence"
    UNFENCE = "unfence"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The cluster, seen a moment ago."""

    barred: Barred
    """What can keep writers out of it."""
    authorizer: Authorizer = Authorizer.KAFKA
    """What rules its access rights, by mirrorbook.yaml."""
    bare: tuple[str, ...] = ()
    """Brokers that do not show all denials, in words."""
    ends: Mapping[Partition, Offset] = field(default_factory=dict)
    """Log ends, of the partitions that have a leader."""
    written: Ranges = field(default_factory=dict)
    """Behind the ends that are recorded: where records lie that applications have written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What was found, what is to be done, and what people are told."""

    standing: Standing
    action: Action = Action.NOTHING
    debt: Debt | None = None
    """As it is to be recorded; None: as it is."""
    lines: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """What somebody has to be called for."""
    once: tuple[str, ...] = ()
    """Of these, the ones that no later look would find again: who was told of them notes that (`told_of`)."""
    slipped: Ranges = field(default_factory=dict)
    """What the cluster holds beyond the last mirrored offsets, up to where its fence was seen to hold."""
    written: Ranges = field(default_factory=dict)
    """What it has taken behind it, or without one."""
    silent: bool = False
    """The cluster does not answer, and something waits for its answer."""
    held: bool = False
    """A run holds the mirror."""
    exposed: bool = False
    """It answers, and its fence is pending: recorded as owed, and by nobody as seen."""


def failed_over(debt: Debt | None) -> bool:
    """Whether a failover has moved applications away from the source. Each one leaves a debt, also where the source
    cannot be fenced, and only a failback takes it away."""
    return debt is not None and debt.owed is Owed.FENCE


def standing_of(debt: Debt | None) -> Standing:
    """How things stand, by what is recorded."""
    if debt is None:
        return Standing.NOTHING
    if debt.owed is Owed.UNFENCE:
        return Standing.LIFTING
    if debt.paid_ms is not None:
        return Standing.STANDS
    return Standing.WATCHED if debt.ends != NO_OFFSETS else Standing.OWED


def fenced_beside(debt: Debt | None, run: Run, *, turned: bool) -> bool:
    """Whether the cluster is kept fenced also while this run holds the mirror: a failover past its point of no return,
    which no abort undoes (`turned`); and a failback, until it lets the mirror write there, which takes the debt away
    first."""
    return failed_over(debt) and (run.plan.kind is RunKind.FAILBACK or turned)


def promoting(debt: Debt, run: Run, begun: Container[tuple[str, str]], *, held_up: bool) -> bool:
    """Whether it is an unplanned failover that owes its source a fence, and can still be given up if it has given
    nothing: one that has begun to promote, or that something holds up before. `begun`: runs' ids with the names of
    steps that have begun."""
    unplanned = run.plan.mode is Mode.UNPLANNED and run.state is RunState.RUNNING
    return failed_over(debt) and debt.run == run.id and unplanned and (held_up or steps.turned(run, begun))


def waits_for_home(mirror: MirrorName, debt: Debt | None) -> bool:
    """Whether a watcher leaves a mirror alone while a failback that it belongs to is under way. Its other side tells.

    Not where a fence is pending: the new primary was given up on the way home, and its failback never puts one up. Nor
    where one is to be lifted: applications are still there, and the failback waits for another way home.
    """
    return is_way_home(mirror) and standing_of(debt) not in (Standing.OWED, Standing.LIFTING)


def nothing_to_watch(mirror: Mirror | None, debt: Debt | None) -> str | None:
    """Why nobody has to look after a mirror any more; None while somebody has to. Behind a failover that is who keeps
    the old source fenced, until a failback has lifted that fence."""
    if mirror is None:
        return "the mirror was deleted"
    return "the mirror is stopped" if mirror.desired is Desired.STOPPED and debt is None else None


def judge(debt: Debt | None, run: Run | None, seen: Shown | Unseen, *, beside: bool = False) -> Judgement:
    """What to do about a debt. Nothing while a run holds the mirror: it does so itself, or is about to undo it.

    `beside`: but for a run beside which the cluster is kept fenced. Its conductor may be at work: nothing is recorded.
    A run of the reverse mirror is part of a failback of this one, which holds it all the time.
    """
    standing = standing_of(debt)
    if debt is None:
        return Judgement(standing=standing, lines=("no fence is pending on any cluster",), held=run is not None)
    if run is None:
        return _judged(debt, standing, seen)
    if not beside:
        line = f"{run.plan.kind} {run.id} holds the mirror: nothing is done to cluster {debt.cluster} meanwhile"
        return Judgement(standing=standing, lines=(line,), held=True)
    unnoted = replace(debt, unsaid=())  # nobody could note that they were told: told after the run, if they still count
    found = replace(_judged(unnoted, standing, seen), action=Action.NOTHING, debt=None, once=(), held=True)
    if isinstance(seen, Unseen) or standing is not Standing.OWED:
        return found
    return replace(found, alarms=(*pending(debt, (run.id,)), *found.alarms), exposed=True)


def pending(debt: Debt | None, active_runs: Collection[str]) -> Iterator[str]:
    """What people are told of a cluster that answers, if its fence is pending."""
    if debt is None or standing_of(debt) is not Standing.OWED:
        return
    what = f"cluster {debt.cluster} answers, and its fence is pending"
    if debt.run in active_runs:
        yield (
            f"{what}, since failover {debt.run} has not ended: `mirrorbook failover resume {debt.mirror}` goes on with "
            "it. Until then only watchers keep writers out there"
        )
    else:
        yield f"{what}: `mirrorbook mirror watch {debt.mirror}` puts it up"


def took_meanwhile(debt: Debt, run: Run, taken: Ranges, sighting: Sighting | None) -> Judgement:
    """Of a source that answers while an unplanned failover stands before its promotion. `taken`: what it has beyond the
    last mirrored offsets. Nothing is done: the run may still be given up, and then the source takes writes as before.
    """
    standing = standing_of(debt)
    alarm = (
        f"cluster {debt.cluster} answers, and failover {run.id} has not promoted yet; what was not copied: "
        f"{shown_slip(taken, sighting)}. `mirrorbook failover abort {debt.mirror}` loses nothing; `mirrorbook failover "
        f"resume {debt.mirror}` says what it would leave behind"
    )
    return Judgement(
        standing=standing,
        lines=tuple(words(debt)),
        alarms=(alarm,) if taken else (),
        held=True,
        exposed=standing is Standing.OWED,
    )


def unsaid(debt: Debt, alarms: Iterable[str]) -> Debt:
    """The debt with alarms that no later look would find again. Written before, or with, what hides them: whoever dies
    before people were told leaves them to the next look."""
    return replace(debt, unsaid=tuple(dict.fromkeys((*debt.unsaid, *alarms))))


def told_of(debt: Debt, alarms: Collection[str]) -> Debt:
    """The debt after people were told of these alarms."""
    return replace(debt, unsaid=tuple(alarm for alarm in debt.unsaid if alarm not in alarms))


def _judged(debt: Debt, standing: Standing, seen: Shown | Unseen) -> Judgement:
    found = _looked(debt, standing, seen)
    return replace(found, alarms=(*debt.unsaid, *found.alarms), once=(*debt.unsaid, *found.once))


def _looked(debt: Debt, standing: Standing, seen: Shown | Unseen) -> Judgement:
    if isinstance(seen, Unseen):
        waits = debt.paid_ms is None
        return Judgement(standing=standing, lines=(*words(debt), f"no answer: {seen.reason}"), silent=waits)
    if debt.owed is Owed.UNFENCE:
        return Judgement(standing=standing, action=Action.UNFENCE, lines=tuple(words(debt)))
    if seen.barred is Barred.BY_NOTHING:
        return _watched(debt, seen)
    if debt.paid_ms is None:
        return Judgement(standing=standing, action=Action.FENCE, lines=tuple(words(debt)))
    return _looked_after(debt, seen)


def paid(debt: Debt, shown: Mapping[Partition, Offset], now_ms: int, *, by_command: bool = False) -> Debt:
    """The debt, now that every broker shows the fence. What was paid before stays so: its ends count.

    `by_command`: that has ended well, and the logs stand still. What was written behind an earlier call of it slipped
    in, too: nothing but these ends tells when it was closed again.
    """
    before = debt.ends.by_partition()
    ends = {**before, **shown} if by_command else {**shown, **before}
    return replace(debt, paid_ms=debt.paid_ms or now_ms, ends=Offsets.of(ends), by_command=by_command, trouble="")


def words(debt: Debt | None) -> Iterator[str]:
    """How things stand, by what is recorded, for a plan or a terminal. Nothing when nothing is owed."""
    if debt is None:
        return
    match standing_of(debt):
        case Standing.LIFTING:
            yield f"{debt.cluster}: run {debt.run} was aborted, and its fence waits to be removed since {_at(debt)}"
        case Standing.OWED:
            yield f"{debt.cluster}: fence pending since {_at(debt)}; until it is in place, this cluster accepts writes"
        case Standing.WATCHED:
            yield f"{debt.cluster}: cannot be fenced; it is only watched since {_at(debt)}"
        case Standing.STANDS:
            how = ", closed by its fence_command, which no broker can show" if debt.by_command else ""
            yield f"{debt.cluster}: its fence stands since {when(debt.paid_ms or 0)}{how}"
    if debt.trouble:
        yield debt.trouble


def when(ms: int) -> str:
    """A wall-clock time as people read it."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _at(debt: Debt) -> str:
    return when(debt.since_ms)


def _watched(debt: Debt, seen: Shown) -> Judgement:
    trouble = f"cluster {debt.cluster} {ruled.watched_only(seen.authorizer)}{_writers(seen)}"
    found = _recorded(replace(_with_ends(debt, seen), paid_ms=None, by_command=False, trouble=trouble), debt, seen)
    if seen.authorizer is not Authorizer.FOREIGN:
        return found
    return replace(found, alarms=(ruled.to_be_closed(debt.cluster), *found.alarms), exposed=True)


def _looked_after(debt: Debt, seen: Shown) -> Judgement:
    if seen.bare:
        alarm = f"the fence was taken away and is put up again: {some(seen.bare)}"
        alarms = (alarm, *_alarms(debt, seen))
        return Judgement(
            standing=Standing.STANDS, action=Action.FENCE, alarms=alarms, once=(alarm,), written=seen.written
        )
    if seen.barred is Barred.BY_COMMAND and (seen.written or not debt.by_command):
        alarm = f"{debt.cluster}: its fence_command is called again"
        alarms = (alarm, *_alarms(debt, seen))
        return Judgement(
            standing=Standing.STANDS, action=Action.FENCE, alarms=alarms, once=(alarm,), written=seen.written
        )
    return _recorded(replace(_with_ends(debt, seen), trouble=_writers(seen).removeprefix("; ")), debt, seen)


def _recorded(now: Debt, before: Debt, seen: Shown) -> Judgement:
    action = Action.NOTHING if now == before else Action.RECORD
    alarms = tuple(_alarms(now, seen))
    return Judgement(
        standing=standing_of(now), action=action, debt=now, lines=tuple(words(now)), alarms=alarms, written=seen.written
    )


def _with_ends(debt: Debt, seen: Shown) -> Debt:
    """With the ends of partitions that had no leader before. Their brokers took the fence up before they opened."""
    return replace(debt, ends=Offsets.of({**seen.ends, **debt.ends.by_partition()}))


def _writers(seen: Shown) -> str:
    # Without the offsets, which move: what is recorded is written again when it changes.
    return f"; somebody writes there all the same: {some(sorted(seen.written))}" if seen.written else ""


def _alarms(debt: Debt, seen: Shown) -> Iterator[str]:
    if seen.written:
        yield (
            f"cluster {debt.cluster} has taken {count(seen.written)} offset(s) that no fence stopped: "
            f"{listed(seen.written)}. Either a super user, or a cluster without a fence: stop that writer"
        )

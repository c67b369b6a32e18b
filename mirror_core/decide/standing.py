"""The pending fence of the cluster that applications left by a failover, and what to do about it now.

The state topic records what is pending; the cluster, when it answers, shows what it has. The deciding process may have
been paused: so it decides before it takes control of the mirror, and again afterwards.
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
    NOTHING = "nothing"
    OWED = "pending"
    STANDS = "stands"
    """Every broker was seen to have it."""
    WATCHED = "watched"
    """Nothing of ours can fence the cluster: only its writes are watched."""
    LIFTING = "lifting"


class Action(StrEnum):
    NOTHING = "nothing"
    FENCE = "fence"
    UNFENCE = "unfence"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    barred: Barred
    authorizer: Authorizer = Authorizer.KAFKA
    bare: tuple[str, ...] = ()
    ends: Mapping[Partition, Offset] = field(default_factory=dict)
    written: Ranges = field(default_factory=dict)
    """Application records beyond the recorded ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    standing: Standing
    action: Action = Action.NOTHING
    debt: Debt | None = None
    lines: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    """Alarms that no later check would find: recorded as reported by `mark_reported`."""
    slipped: Ranges = field(default_factory=dict)
    written: Ranges = field(default_factory=dict)
    silent: bool = False
    held: bool = False
    exposed: bool = False


def failed_over(debt: Debt | None) -> bool:
    """Whether a failover moved applications away. Each one leaves this record, even if the source cannot
    be fenced; only a failback removes it.
    """
    return debt is not None and debt.owed is Owed.FENCE


def standing_of(debt: Debt | None) -> Standing:
    if debt is None:
        return Standing.NOTHING
    if debt.owed is Owed.UNFENCE:
        return Standing.LIFTING
    if debt.paid_ms is not None:
        return Standing.STANDS
    return Standing.WATCHED if debt.ends != NO_OFFSETS else Standing.OWED


def fenced_beside(debt: Debt | None, run: Run, *, turned: bool) -> bool:
    """Whether the fence is kept while this run holds the mirror.

    Yes for a failover past its point of no return (`turned`), and for a failback until it lets the mirror write there,
    which first removes the pending fence.
    """
    return failed_over(debt) and (run.plan.kind is RunKind.FAILBACK or turned)


def promoting(debt: Debt, run: Run, begun: Container[tuple[str, str]], *, held_up: bool) -> bool:
    """Whether it is an unplanned failover with a pending fence that has begun to promote or is stalled
    before.

    It may still be aborted if it has given nothing. `begun`: (run id, step) pairs.
    """
    unplanned = run.plan.mode is Mode.UNPLANNED and run.state is RunState.RUNNING
    return failed_over(debt) and debt.run == run.id and unplanned and (held_up or steps.turned(run, begun))


def waits_for_home(mirror: MirrorName, debt: Debt | None) -> bool:
    """Whether a watcher skips a mirror during the failback that it belongs to.

    Not where a fence is pending: the new primary was given up, and its failback never fences it. Nor where one must be
    lifted: applications are still there.
    """
    return is_way_home(mirror) and standing_of(debt) not in (Standing.OWED, Standing.LIFTING)


def nothing_to_watch(mirror: Mirror | None, debt: Debt | None) -> str | None:
    """None: somebody must watch, after a failover until a failback has lifted the fence."""
    if mirror is None:
        return "the mirror was deleted"
    return "the mirror is stopped" if mirror.desired is Desired.STOPPED and debt is None else None


def judge(debt: Debt | None, run: Run | None, seen: Shown | Unseen, *, beside: bool = False) -> Judgement:
    """Decides about a pending fence. Nothing while a run holds the mirror: the run does it, or will undo
    it.

    `beside`: the fence is kept during this run; its conductor may be active, so nothing is recorded. A run of the
    reverse mirror is part of this mirror's failback, which holds it all the time.
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
    """The source answers before an unplanned failover promotes. `taken`: beyond the last mirrored offsets.

    Nothing is done: the run may be aborted, and then the source accepts writes as before.
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
    """Adds alarms that no later check would find.

    Written before or with what hides them: a process that dies before people are told leaves them to the next check.
    """
    return replace(debt, unsaid=tuple(dict.fromkeys((*debt.unsaid, *alarms))))


def told_of(debt: Debt, alarms: Collection[str]) -> Debt:
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
    """Every broker shows the fence. Ends that were recorded before stay.

    `by_command`: the command succeeded and the logs stand still. Records written after an earlier call are late writes
    too: only these ends tell when it was closed again.
    """
    before = debt.ends.by_partition()
    ends = {**before, **shown} if by_command else {**shown, **before}
    return replace(debt, paid_ms=debt.paid_ms or now_ms, ends=Offsets.of(ends), by_command=by_command, trouble="")


def words(debt: Debt | None) -> Iterator[str]:
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
    """Adds ends of partitions that were offline. Their brokers had the fence before they opened."""
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

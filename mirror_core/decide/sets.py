"""Several mirrors in one failover: what is due for each, whatever became of the others.

Until one is promoted, all move or all stay: one that fails takes the others back. After the first promotion nothing is
taken back: one that fails is left for `resume`, and in parallel order the others do not wait for it. Nor do they in an
unplanned failover: there is nothing to go back to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.steps import names, point_of_no_return, standing_still, undisturbed
from mirror_core.model.mirror_set import MirrorSet, Order
from mirror_core.model.names import MirrorName
from mirror_core.model.run import Mode, Plan, Run, RunKind, RunState, StepRecord, StepState


class Place(StrEnum):
    BEGUN = "begun"
    PROVED = "proved"
    """Not affected yet; everything is done that can be done before they are stopped."""
    STOPPED = "applications stopped"
    READY = "ready"
    TURNED = "promoted, not done"
    """Promotion may have given rights: no abort."""
    DONE = "done"
    ABORTING = "being given up"
    GONE = "given up"


class Move(StrEnum):
    PROVE = "prove"
    MAKE_READY = "make ready"
    FINISH = "finish"
    ABORT = "abort"
    WAIT = "wait"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Member:
    mirror: MirrorName
    place: Place
    failed: bool = False


TURNED: Final = frozenset({Place.TURNED, Place.DONE})
UNDISTURBED: Final = frozenset({Place.BEGUN, Place.PROVED})
_OVER: Final = frozenset({Place.DONE, Place.GONE})
_SIDE_BY_SIDE: Final[Mapping[Place, Move]] = MappingProxyType(
    {
        Place.BEGUN: Move.PROVE,
        Place.PROVED: Move.MAKE_READY,
        Place.STOPPED: Move.MAKE_READY,
        Place.READY: Move.FINISH,
    }
)
"""Due for a single mirror before any is promoted. The earliest action of any member is due first."""
_EARLIER_FIRST: Final = (Move.PROVE, Move.MAKE_READY, Move.FINISH)


def moves(members: Sequence[Member], order: Order, mode: Mode = Mode.PLANNED) -> tuple[Move, ...]:
    if mode is Mode.UNPLANNED:
        return _each_alone(members, order)
    turned = any(one.place in TURNED for one in members)
    if not turned and any(one.failed or one.place in (Place.ABORTING, Place.GONE) for one in members):
        return tuple(Move.NOTHING if one.place is Place.GONE else Move.ABORT for one in members)
    if order is Order.IN_ORDER:
        return _in_order(members, turned)
    if turned:
        return tuple(Move.NOTHING if one.failed or one.place in _OVER else Move.FINISH for one in members)
    alone = [_SIDE_BY_SIDE[one.place] for one in members]
    first = min(alone, key=_EARLIER_FIRST.index)
    return tuple(move if move is first else Move.WAIT for move in alone)


def _each_alone(members: Sequence[Member], order: Order) -> tuple[Move, ...]:
    found = list[Move]()
    for one in members:
        if one.failed or one.place in _OVER:
            found.append(Move.NOTHING)
        else:
            found.append(Move.WAIT if order is Order.IN_ORDER and Move.FINISH in found else Move.FINISH)
    return tuple(found)


def _in_order(members: Sequence[Member], turned: bool) -> tuple[Move, ...]:
    """All are verified before the first is stopped. Behind a failed one the others wait, still writable."""
    found = list[Move]()
    proving = not turned and any(one.place is Place.BEGUN for one in members)
    waiting = False
    for one in members:
        if one.place in _OVER:
            found.append(Move.NOTHING)
        elif waiting or (proving and one.place is not Place.BEGUN):
            found.append(Move.WAIT)
        else:
            waiting = True
            found.append(Move.NOTHING if one.failed else Move.PROVE if proving else Move.FINISH)
    return tuple(found)


def undisturbed_all(members: Iterable[Member]) -> bool:
    return all(one.place in UNDISTURBED for one in members)


def place_of(run: Run, steps: Iterable[StepRecord], *, turned: bool) -> Place:
    if run.state is not RunState.RUNNING:
        return {RunState.DONE: Place.DONE, RunState.ABORTING: Place.ABORTING}.get(run.state, Place.GONE)
    kind, mode = RunKind.FAILOVER, run.plan.mode
    known = {step.step: step.state for step in steps}
    turning = point_of_no_return(kind, mode)
    before = names(kind, mode)[: names(kind, mode).index(turning)]
    if turned:
        return Place.TURNED
    if all(known.get(step) is StepState.DONE for step in before):
        return Place.READY
    if standing_still(kind, mode)[0] in known:
        return Place.STOPPED
    proved = all(known.get(step) is StepState.DONE for step in undisturbed(kind, mode))
    return Place.PROVED if proved else Place.BEGUN


def set_of(part_of: str) -> str:
    return part_of.rpartition("-")[0].rpartition("-")[0]


def waiting_behind(mirror: MirrorName, chosen: MirrorSet) -> MirrorName | None:
    at = chosen.mirrors.index(mirror) + 1 if mirror in chosen.mirrors else len(chosen.mirrors)
    return chosen.mirrors[at] if chosen.order is Order.IN_ORDER and at < len(chosen.mirrors) else None


def stood_still_in_all_s(runs: Iterable[tuple[Run, Iterable[StepRecord]]]) -> float | None:
    first, last = list[int](), list[int | None]()
    for run, steps in runs:
        still, known = standing_still(RunKind.FAILOVER, run.plan.mode), {step.step: step for step in steps}
        if still[0] in known:
            first.append(known[still[0]].started_ms)
            last.append(known[still[-1]].ended_ms if still[-1] in known else None)
    ends = [one for one in last if one is not None]
    return (max(ends) - min(first)) / 1000 if ends and len(ends) == len(last) else None


def joint_hash(chosen: MirrorSet, plans: Iterable[Plan]) -> str:
    """SHA-256 in hexadecimal over all plans and the order: what an approval of the set is bound to."""
    lines = [chosen.name, chosen.order, *(f"{plan.mirror} {plan.hash}" for plan in plans)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()

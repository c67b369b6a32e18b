"""What lies between runs that are right one by one: every history up to a depth, and to its end where there is one.

The decisions are the product's own. Without one of its guards a history is found that breaks an invariant, and a
shortest one is shown: so the exploration sees what the guards are for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from mirror_core.decide import acl_plan, approval_rules, failback_plan, fence_state, source_probe, steps
from mirror_core.decide.fence_state import FenceState
from mirror_core.evidence import fence_file
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import MirrorName, is_reverse_mirror
from mirror_core.model.run import Run, RunKind
from mirror_core.rights import ledger_rules
from mirror_core.sync import acl_ledger, fence_acls
from tests.explored.invariants import protected, wrong_move, wrong_world
from tests.explored.limits import Limits
from tests.explored.search import Explored, Violated, explore, stuck
from tests.explored.start import led, started
from tests.explored.world import World, forget_answers
from tests.support.random_seeds import EXPLORE

DEEP: Final = bool(os.environ.get(EXPLORE))
"""At night: to the end, or as far as there is time for."""


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Answers of the product's decisions are remembered within a test only."""
    forget_answers()
    yield
    forget_answers()


def explored(start: World, within: Limits, **bounds: int) -> Explored:
    found = explore(start, within, wrong_move, wrong_world, **bounds)
    end = f"an edge of {len(found.edge)} worlds" if found.edge else "the end"
    print(f"{len(found.worlds)} worlds, {found.moves} moves, {max(found.depths)} acts deep, to {end}")
    return found


def _through(start: World, within: Limits, **bounds: int) -> Explored:
    """And from each world a way leads on."""
    found = explored(start, within, **bounds)
    if without := stuck(found, protected):
        raise Violated("no way leads on after:\n" + "\n".join(found.path(without[0])))
    return found


# -- the code as it is ----------------------------------------------------------------------------------------------

QUIET: Final = Limits(outages=(), hours=False, verbs=False, files=False, writes=False)
"""Nothing but the commands of failover and failback, and processes that are killed."""


@dataclass(frozen=True)
class Part:
    """A part of the whole, small enough to be gone through."""

    limits: Limits
    worlds: int
    """At least so many are seen in the gate, ..."""
    depth: int
    """... and so many acts deep."""
    most: int = 10**9
    deep: int = 10**9
    """The most that are looked at, in the gate and at night."""
    start: Callable[[], World] = started
    leads_home: bool = True
    """Whether all that a person may do is part of it."""


PARTS: Final = {
    "killed anywhere": Part(QUIET._replace(hours=True, verbs=True), worlds=7_000, depth=100),
    "east falls silent": Part(Limits(outages=(0,), hours=False), worlds=15_000, depth=15, most=15_000, deep=400_000),
    "west falls silent": Part(Limits(outages=(1,), hours=False), worlds=15_000, depth=15, most=15_000, deep=400_000),
    "west falls silent on the way home": Part(
        QUIET._replace(outages=(1,), verbs=True, kills=False),
        worlds=500,
        depth=10,
        most=15_000,
        deep=400_000,
        start=lambda: led(started(), "failover run --mode unplanned m", "failback run m"),
    ),
    "home falls silent, and the fence is lifted by its file": Part(
        QUIET._replace(outages=(0,), files=True),
        worlds=10_000,
        depth=8,
        most=15_000,
        deep=400_000,
        start=lambda: led(started(), "failover run --mode unplanned m", "failback run m"),
    ),
    "both fall silent": Part(Limits(hours=False), worlds=10_000, depth=12, most=10_000, deep=400_000),
    "a right is withdrawn": Part(
        QUIET._replace(outages=(0,), verbs=True, revoked=True), worlds=10_000, depth=12, most=10_000, deep=400_000
    ),
    "two at once": Part(QUIET._replace(processes=2), worlds=12_000, depth=12, most=12_000, deep=300_000),
    "by Airflow": Part(
        Limits(airflow=True, outages=(0,), verbs=False, failbacks=False),
        worlds=12_000,
        depth=9,
        most=12_000,
        deep=300_000,
        leads_home=False,
    ),
    "two mirrors": Part(
        QUIET._replace(outages=(0,)),
        worlds=10_000,
        depth=8,
        most=10_000,
        deep=300_000,
        start=lambda: started(2),
    ),
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_no_history_breaks_an_invariant_and_each_world_has_a_way_to_be_protected(part: Part) -> None:
    most = part.deep if DEEP else part.most
    found = (_through if part.leads_home else explored)(part.start(), part.limits, most=most)
    assert len(found.worlds) >= part.worlds
    assert max(found.depths) >= part.depth


# -- without a guard ------------------------------------------------------------------------------------------------

BOTH, NOWHERE, ASKED = "on both clusters", "nowhere", "and nobody was asked"
THERE: Final = "failover run --mode planned m"
HOME: Final = ("failback run m", "failover run --mode planned m-back", "failback resume m")


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_args, **_known: answer


def _stopped(mirror: Any, _debt: Any) -> str | None:
    return "the mirror is stopped" if mirror is None or mirror.desired is DesiredState.STOPPED else None


def _home_unless(state: FenceState) -> Callable[[MirrorName, Any], bool]:
    """A watcher leaves ways home alone, but for this state."""
    return lambda mirror, debt: is_reverse_mirror(mirror) and fence_state.find_fence_state(debt) is not state


def _failovers_only(
    debt: Any, run: Run, *, is_past_no_return: bool, real: Callable[..., bool] = fence_state.must_fence_during_run
) -> bool:
    return run.plan.kind is RunKind.FAILOVER and real(debt, run, is_past_no_return=is_past_no_return)


ALL_MIRRORS: Final = frozenset(map(MirrorName, ("m", "m-back", "n", "n-back")))


@dataclass(frozen=True)
class Guard:
    """A decision of the product, what it is replaced by, and what is found then."""

    without: tuple[tuple[Any, str, Any], ...]
    limits: Limits
    finds: str
    mirrors: int = 1
    before: tuple[str, ...] = field(default=())
    """What has happened already, with the guard in place."""


GUARDS: Final = {
    "a failback needs a failover": Guard(
        ((failback_plan, "has_failed_over", _always(True)),), QUIET._replace(verbs=True, unplanned=False), NOWHERE
    ),
    "a new primary that was given up on the way home is fenced": Guard(
        ((fence_state, "is_waiting_for_failback", _home_unless(FenceState.LIFTING)),),
        QUIET._replace(outages=(1,), kills=False),
        BOTH,
    ),
    "a way home that was given up leaves no fence": Guard(
        ((fence_state, "is_waiting_for_failback", _home_unless(FenceState.PENDING)),),
        QUIET._replace(outages=(1,), kills=False),
        NOWHERE,
    ),
    "beside an unfinished failover the source is fenced": Guard(
        ((fence_state, "must_fence_during_run", _always(False)),), QUIET._replace(outages=(0,)), BOTH
    ),
    "beside an unfinished failback the source is fenced": Guard(
        ((fence_state, "must_fence_during_run", _failovers_only),), QUIET._replace(outages=(0,)), BOTH
    ),
    "an old approval begins nothing in Airflow": Guard(
        ((approval_rules, "explain_stale_approvals", _always(())),),
        QUIET._replace(hours=True, airflow=True),
        "on an old approval",
    ),
    "an old answer stops nobody in Airflow": Guard(
        ((approval_rules, "explain_expired_run", _always("")),),
        QUIET._replace(hours=True, airflow=True),
        "on an old approval",
    ),
    "resume asks again": Guard(
        ((approval_rules, "explain_stale_run_approval", _always("")),), QUIET._replace(hours=True), "on an old approval"
    ),
    "resume of a failback asks again": Guard(
        ((approval_rules, "explain_stale_run_approval", _always("")),),
        QUIET._replace(hours=True, unplanned=False),
        "step align of failback",
        before=("failover run --mode unplanned m",),
    ),
    "a file lifts the fence without the destination": Guard(
        ((fence_file, "list_names", _always(())),),
        QUIET._replace(outages=(1,), files=True),
        "no command lifts the fence",
    ),
    "a promotion opens its own topics only": Guard(
        ((acl_ledger, "is_on_topics", _always(True)), (acl_ledger, "get_both_directions", _always(ALL_MIRRORS))),
        QUIET._replace(kills=False),
        "changed DENY",
        mirrors=2,
        before=(THERE, *HOME, THERE.replace(" m", " n"), *(way.replace(" m", " n") for way in HOME)),
    ),
    "a right that was withdrawn does not come back": Guard(
        ((acl_plan, "update_demotions", _always(())), (ledger_rules, "update_demotions", _always(()))),
        QUIET._replace(kills=False, revoked=True),
        "nobody grants it",
        before=(THERE, *HOME),
    ),
    "somebody watches until the fence is not needed": Guard(
        ((fence_state, "explain_nothing_to_watch", _stopped),), QUIET._replace(outages=(0,)), BOTH
    ),
    "a source that is back is given up only by a word": Guard(
        ((source_probe, "needs_confirmation", _always(False)),),
        QUIET._replace(outages=(0,), kills=False, writes=True),
        ASKED,
    ),
    "an approval of when it was silent begins nothing": Guard(
        ((approval_rules, "explain_source_answers_again", _always(())),),
        QUIET._replace(airflow=True, outages=(0,)),
        "by an approval of before",
    ),
    "what was lifted and stands again is named": Guard(
        ((fence_acls, "find_stray_denials", _always(())),),
        QUIET._replace(processes=2, unplanned=False, failbacks=False),
        "nobody remembers",
    ),
    "no abort leads back from the promotion": Guard(((steps, "is_past_no_return", _always(False)),), QUIET, BOTH),
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_without_a_guard_a_history_is_found(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    start = led(started(guard.mirrors), *guard.before)
    forget_answers()
    for where, name, instead in guard.without:
        monkeypatch.setattr(where, name, instead)
    with pytest.raises(Violated) as violated:
        explored(start, guard.limits, most=60_000)
    print(violated.value)
    assert guard.finds in str(violated.value)

"""What all processes have in common: one durable act at a time, between which each may be killed, or sleep.

A process that has taken a mirror over (KIP-98 fences whoever had it) may write its records until another one does.
Rights on a cluster know no owner: whoever slept before such an act does it all the same, and learns afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from mirror_core.decide.steps import list_step_names
from mirror_core.evidence import fence_file
from mirror_core.model.acl import LIFTABLE_PURPOSES, Acl, AclPurpose, LedgerEntry, Resource
from mirror_core.model.run import RunKind, RunState
from mirror_core.sync.fence_acls import build_denials
from tests.explored.deciding import entered, replaced, wanted
from tests.explored.world import (
    ACLS,
    CLUSTERS,
    LEDGER,
    File,
    Proc,
    Rec,
    Run,
    World,
    destination,
    fence_of,
    name_of,
    source,
    state_on,
    topic_of,
)

Act = Callable[[World, Proc], World | None]
A = TypeVar("A", bound=Act)
ACTS: Final[dict[str, Act]] = {}
"""By name; None: it cannot happen now, and the process waits."""


def act(name: str) -> Callable[[A], A]:
    def known(function: A) -> A:
        ACTS[name] = function
        return function

    return known


# -- processes --------------------------------------------------------------------------------------------------------


def to(world: World, proc: Proc, at: str, **changes: Any) -> World:
    """The process, before its next act."""
    now = proc._replace(at=at, **changes)
    return world._replace(procs=tuple(now if p.slot == proc.slot else p for p in world.procs))


def end(world: World, proc: Proc) -> World:
    """The process has ended, or was killed: what it had taken over is nobody's."""
    recs = tuple(r._replace(owner=0) if r.owner == proc.slot else r for r in world.recs)
    return world._replace(recs=recs, procs=tuple(p for p in world.procs if p.slot != proc.slot))


def back(world: World, proc: Proc) -> World:
    """From a part that several steps have in common."""
    return to(world, proc, proc.then[-1], then=proc.then[:-1], mask=0, soft=False)


# -- records ----------------------------------------------------------------------------------------------------------


def put(world: World, link: int, **changes: Any) -> World:
    recs = list(world.recs)
    recs[link] = recs[link]._replace(**changes)
    return world._replace(recs=tuple(recs))


def take_over(world: World, proc: Proc, link: int | None = None) -> World:
    return put(world, proc.link if link is None else link, owner=proc.slot)


def answers(world: World, link: int) -> bool:
    """Whether the cluster with the mirror's records does."""
    return world.up[destination(link)]


def owns(world: World, proc: Proc, link: int | None = None) -> bool:
    at = proc.link if link is None else link
    return answers(world, at) and world.recs[at].owner == proc.slot


def run_in(rec: Rec, number: int, kind: RunKind) -> Run:
    return next(r for r in rec.runs if r.id == number and r.kind is kind)


def put_run(world: World, link: int, run: Run, **changes: Any) -> World:
    others = tuple(r for r in world.recs[link].runs if (r.id, r.kind) != (run.id, run.kind))
    return put(world, link, runs=(*others, run._replace(**changes)))


def done(world: World, link: int, run: Run, steps: int = 1, **changes: Any) -> World:
    """These steps are done, and written down."""
    return put_run(world, link, run, done=run.done + steps, begun=False, **changes)


def step_of(run: Run) -> str | None:
    """The next step; None: all are done."""
    steps = list_step_names(run.kind, run.mode)
    return steps[run.done] if run.done < len(steps) else None


def enter(world: World, link: int, cluster: int, acls: set[Acl], purpose: AclPurpose) -> World:
    """Into the ledger, what is not there for this purpose."""
    known = {e.acl for e in entered(world, link, cluster, purpose)}
    entry = {"mirror": name_of(link), "cluster": CLUSTERS[cluster], "purpose": purpose}
    news = tuple(LedgerEntry(acl=acl, **entry) for acl in sorted(acls - known))  # type: ignore[arg-type]  # as named
    return put(world, link, ledger=LEDGER.mask(replaced(LEDGER.values(world.recs[link].ledger), news)))


def forget(world: World, link: int, entries: tuple[LedgerEntry, ...]) -> World:
    """And once more off the cluster, since who slept may have put up again what was in the ledger until now."""
    mask, rec = alone(world, link, entries), world.recs[link]
    lifted = LEDGER.values(rec.lifted).union(e for e in entries if e.purpose in LIFTABLE_PURPOSES)
    ledger = LEDGER.values(rec.ledger) - set(entries)
    world = put(world, link, ledger=LEDGER.mask(ledger), lifted=LEDGER.mask(lifted))
    return delete(world, CLUSTERS.index(entries[0].cluster), mask) if entries else world


# -- rights on a cluster ----------------------------------------------------------------------------------------------


def create(world: World, cluster: int, mask: int) -> World:
    return _held(world, cluster, world.acls[cluster] | mask)


def delete(world: World, cluster: int, mask: int) -> World:
    return _held(world, cluster, world.acls[cluster] & ~mask)


def _held(world: World, cluster: int, mask: int) -> World:
    sides = list(world.acls)
    sides[cluster] = mask
    return world._replace(acls=(sides[0], sides[1]))


def alone(world: World, link: int, entries: tuple[LedgerEntry, ...]) -> int:
    """Of these entries what no other mirror has entered, too."""
    if not entries:
        return 0
    cluster = CLUSTERS.index(entries[0].cluster)
    others = wanted(state_on(world, destination(link)), cluster, entries)
    return ACLS.mask(e.acl for e in entries if e.acl not in others)


def settled(world: World, proc: Proc, cluster: int, mask: int) -> World:
    """Who has lost the mirror has the cluster hold what is in the ledger of its owner."""
    if not (world.up[cluster] and answers(world, proc.link)):
        return end(world, proc)
    known = ACLS.mask(wanted(state_on(world, destination(proc.link)), cluster)) & mask
    return end(create(delete(world, cluster, mask), cluster, known), proc)


# -- a fence on the mirror's source, as failovers, failbacks and watchers put it up -----------------------------------


def deny(world: World, proc: Proc, then: str, *, soft: bool = False) -> World:
    """Go on with putting the fence up. `soft`: a source that is silent holds nobody up."""
    if not world.up[source(proc.link)]:
        return to(world, proc, then) if soft else end(world, proc)
    return to(world, proc, "file", then=(*proc.then, then), soft=soft)


@act("file")
def write_file(world: World, proc: Proc) -> World:
    """Before anything is denied: what lifts it without the destination."""
    return enter_denials(filed(world, proc), proc)


def filed(world: World, proc: Proc) -> World:
    kind = next(r.kind for r in world.recs[proc.link].runs if r.id == proc.run)
    named = topic_of(proc.link) in fence_file.list_names([fence_of(proc.link)], Resource.TOPIC)
    files = list(world.files)
    files[proc.link] = File(proc.run, kind, named)
    return world._replace(files=tuple(files))


@act("enter")
def enter_denials(world: World, proc: Proc) -> World:
    """Into the ledger before they exist. An equal entry of somebody else's stays theirs."""
    link, src = proc.link, source(proc.link)
    if not world.up[src]:
        return back(world, proc) if proc.soft else end(world, proc)
    if not owns(world, proc):
        return end(world, proc)
    wanted = set(build_denials([topic_of(link)]))
    fences = (e for e in state_on(world, destination(link)).ledger.values() if e.purpose is AclPurpose.FENCE)
    known = {e.acl for e in fences if e.cluster == CLUSTERS[src]}
    ours = wanted - ((wanted & ACLS.values(world.acls[src])) - known)
    after = enter(world, link, src, ours, AclPurpose.FENCE)
    return to(after, proc, "create", mask=ACLS.mask(ours))


@act("create")
def create_denials(world: World, proc: Proc) -> World:
    src = source(proc.link)
    if not world.up[src]:
        return back(world, proc) if proc.soft else end(world, proc)
    return to(create(world, src, proc.mask), proc, "confirm")


@act("confirm")
def confirm(world: World, proc: Proc) -> World:
    """A write that only the mirror's owner can do."""
    if owns(world, proc):
        return back(world, proc)
    return settled(world, proc, source(proc.link), proc.mask)


def close(world: World, link: int, run: Run, state: RunState) -> World:
    return put_run(world, link, run, state=state, begun=False)

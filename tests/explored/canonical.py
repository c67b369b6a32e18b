"""One of all worlds that differ by numbers of runs and processes only; runs that nobody asks about are forgotten."""

from __future__ import annotations

from mirror_core.decide.steps import list_step_names
from mirror_core.model.acl import AclPurpose
from mirror_core.model.run import RunKind, RunMode, RunState
from tests.explored.world import ACLS, EAST, LEDGER, WEST, File, Proc, Rec, Run, World, fence_of, source

FORGOTTEN = 99
"""A run that is over, and that nobody asks about any more."""
_RUNNING = (RunState.RUNNING, RunState.ABORTING)
_ASKED = {
    (kind, mode): list_step_names(kind, mode).index(step)
    for kind, mode, step in (
        (RunKind.FAILOVER, RunMode.PLANNED, "drain"),
        (RunKind.FAILOVER, RunMode.UNPLANNED, "switch"),
        (RunKind.FAILBACK, RunMode.PLANNED, "demote"),
    )
}
"""From these steps on nobody asks for how old an approval is."""


def canonical(world: World) -> World:
    world = world._replace(files=tuple(_needed(world, link) for link in range(len(world.files))))
    numbers = [_numbers(world, link, rec) for link, rec in enumerate(world.recs)]

    def number(link: int, run: int) -> int:
        return numbers[link].get(run, FORGOTTEN) if run else 0

    recs = [_renumbered(link, rec._replace(lifted=_told(world, rec)), number) for link, rec in enumerate(world.recs)]
    files = tuple(f and f._replace(run=number(link, f.run)) for link, f in enumerate(world.files))
    dag = world.dag
    if dag is not None:
        dag = dag._replace(run=number(dag.link, dag.run), asked_of=number(dag.link, dag.asked_of))
    procs = sorted(p._replace(run=number(p.link, p.run)) for p in world.procs)
    slots = {p.slot: n for n, p in enumerate(sorted(procs, key=_unslotted), 1)}
    recs = [r._replace(owner=slots.get(r.owner, 0)) if r.owner else r for r in recs]
    named = tuple(p._replace(slot=slots[p.slot]) for p in sorted(procs, key=_unslotted))
    return world._replace(recs=tuple(recs), files=files, dag=dag, procs=named)


def _needed(world: World, link: int) -> File | None:
    """A file, unless nothing is there to be lifted, and nobody is about to put it up."""
    file = world.files[link]
    if file is None or any(p.link // 2 == link // 2 for p in world.procs):
        return file
    if any((r.id, r.kind) == (file.run, file.kind) and r.state in _RUNNING for r in world.recs[link].runs):
        return file
    return file if fence_of(link) in ACLS.values(world.acls[source(link)]) else None


def _told(world: World, rec: Rec) -> int:
    """What was lifted, as far as it stands somewhere, or is about to. What is in the ledger again is remembered again
    when that lifts it; but it may have been carried to the other side before."""
    if not rec.lifted:
        return 0
    mask = world.acls[EAST] | world.acls[WEST]
    for proc in world.procs:
        mask |= proc.mask
    there, ledger = ACLS.values(mask), LEDGER.values(rec.ledger)
    carried = {e.acl for e in ledger if e.purpose in (AclPurpose.STAGED, AclPurpose.PROMOTED)}
    lifted = LEDGER.values(rec.lifted)
    return LEDGER.mask(e for e in lifted if e.acl in carried or (e.acl in there and e not in ledger))


def _unslotted(proc: Proc) -> tuple[object, ...]:
    return proc[1:]


def _numbers(world: World, link: int, rec: Rec) -> dict[int, int]:
    """The new number of each run that is kept."""
    file, dag = world.files[link], world.dag
    asked = {p.run for p in world.procs if p.link == link}
    asked |= {file.run} if file else set()
    asked |= {dag.run, dag.asked_of} if dag and dag.link == link else set()
    if link % 2:
        under_way = {r.id for r in world.recs[link - 1].runs if r.state in _RUNNING and r.kind is RunKind.FAILBACK}
        asked |= {r.id for r in rec.runs if r.homecoming in under_way and r.state is RunState.DONE}
    kept = sorted(r.id for r in rec.runs if r.state in _RUNNING or r.id in asked)
    return {old: new for new, old in enumerate(kept, 1)}


def _renumbered(link: int, rec: Rec, number) -> Rec:  # type: ignore[no-untyped-def]
    def run(one: Run) -> Run:
        home = number(link - 1, one.homecoming) if one.homecoming else 0
        past = one.state not in _RUNNING or one.done >= _ASKED[one.kind, one.mode]
        known = number(link, one.id), home
        if known != (one.id, one.homecoming):
            one = one._replace(id=known[0], homecoming=home)
        if past and (one.fresh, one.silent, one.word, one.given) != (False, False, None, False):
            return one._replace(fresh=False, silent=False, word=None, given=False)
        return one

    if not (rec.runs or rec.debt or rec.homecoming):
        return rec
    runs = tuple(sorted((run(r) for r in rec.runs if number(link, r.id) != FORGOTTEN), key=lambda r: r.id))
    debt = rec.debt and rec.debt._replace(run=number(link, rec.debt.run))
    home = number(link - 1, rec.homecoming) if rec.homecoming else 0
    return rec._replace(runs=runs, debt=debt, homecoming=home)

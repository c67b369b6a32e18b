"""A failover, planned and unplanned, from its begin to its end or its abort: one act after the other."""

from __future__ import annotations

from mirror_core.decide import approvals, left_behind, reckoning, steps
from mirror_core.model.acl import AclPurpose
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.run import Mode, RunKind, RunState
from mirror_core.model.standing import Owed
from mirror_core.state.table import Event, after
from tests.explored.deciding import (
    active,
    broken,
    demoted,
    given,
    plan_failover,
    synced,
    void,
    wanted,
)
from tests.explored.process import (
    act,
    alone,
    answers,
    close,
    create,
    delete,
    deny,
    done,
    end,
    enter,
    forget,
    owns,
    put,
    put_run,
    run_in,
    settled,
    step_of,
    take_over,
    to,
)
from tests.explored.world import (
    ACLS,
    Debt,
    Proc,
    Run,
    World,
    debt_of,
    destination,
    fence_of,
    run_of,
    source,
    state_on,
    status_of,
)

KIND = RunKind.FAILOVER
ONE = {"settle": "settle", "final_offsets": "record_lmo"}
"""Steps that are one act with the next one, or have another name here."""


def begin(world: World, proc: Proc, mode: Mode, *, silent: bool | None = None) -> World | None:
    """Look at both sides, make the plan, open the run. None: refused. `silent`: the source was, when somebody approved
    to give it up; None: that is now."""
    link, rec, there = proc.link, world.recs[proc.link], world.up[source(proc.link)]
    before, silent = active(rec), mode is Mode.UNPLANNED and not there if silent is None else silent
    if not answers(world, link) or approvals.come_back("", "", silent=silent, answers=there, seen=there):
        return None
    continues = (
        before is not None
        and before.kind is KIND
        and (before.mode, before.state, mode) == (Mode.PLANNED, RunState.RUNNING, Mode.UNPLANNED)
        and not steps.turned(run_of(link, before), state_on(world, destination(link)).steps)
    )
    plan, may_be_run = plan_failover(world, link, mode, anew=continues)
    if not may_be_run:
        return None
    number = 1 + max((r.id for r in rec.runs), default=0)
    run = Run(number, KIND, mode, RunState.RUNNING, plan, True, proc.by)
    run = run._replace(homecoming=rec.homecoming, silent=silent)
    if continues and before is not None:
        world = close(world, link, before, RunState.SUPERSEDED)
    world = take_over(put_run(world, link, run), proc)
    return go_on(world, proc._replace(run=number))


def go_on(world: World, proc: Proc) -> World:
    """The next step of the run."""
    run = run_in(world.recs[proc.link], proc.run, KIND)
    step = step_of(run)
    return end(world, proc) if step is None else to(world, proc, ONE.get(step, step), then=())


def run_at(world: World, proc: Proc) -> Run:
    return run_in(world.recs[proc.link], proc.run, KIND)


def _both(world: World) -> bool:
    return all(world.up)


@act("prove")
def prove(world: World, proc: Proc) -> World:
    if not (_both(world) and owns(world, proc)) or world.extra[proc.link // 2][destination(proc.link)]:
        return end(world, proc)
    proved = done(world, proc.link, run_at(world, proc))
    return end(proved, proc) if proc.by == "dag" else go_on(proved, proc)  # another task asks a person first


@act("fence")
def fence(world: World, proc: Proc) -> World:
    """What was approved still holds, or nobody is held up."""
    link = proc.link
    if not owns(world, proc):
        return end(world, proc)
    run = run_at(world, proc)
    begun = put_run(world, link, run, begun=True)
    if void(world, link, run, seen=True) or broken(world, link):
        return end(begun, proc)
    if world.recs[link].debt is not None:
        begun = put(begun, link, debt=None)
    return deny(begun, proc, "fenced")


@act("fenced")
def fenced(world: World, proc: Proc) -> World:
    if not (_both(world) and owns(world, proc)):
        return end(world, proc)
    return go_on(done(world, proc.link, run_at(world, proc)), proc)


@act("drain")
def drain(world: World, proc: Proc) -> World:
    if not (_both(world) and owns(world, proc)) or world.extra[proc.link // 2][destination(proc.link)]:
        return end(world, proc)
    return go_on(done(copied(world, proc.link), proc.link, run_at(world, proc)), proc)


def copied(world: World, link: int) -> World:
    """Both logs are the same."""
    extra = list(world.extra)
    extra[link // 2] = (0, 0)
    return world._replace(extra=tuple(extra))


@act("final_sync")
def final_sync(world: World, proc: Proc) -> World:
    if not (_both(world) and owns(world, proc)):
        return end(world, proc)
    ledger = synced(world, proc.link)
    return go_on(done(put(world, proc.link, ledger=ledger), proc.link, run_at(world, proc)), proc)


@act("parity")
def parity(world: World, proc: Proc) -> World:
    if not (_both(world) and owns(world, proc)) or world.extra[proc.link // 2][destination(proc.link)]:
        return end(world, proc)
    return go_on(done(world, proc.link, run_at(world, proc)), proc)


@act("settle")
def settle(world: World, proc: Proc) -> World:
    if not owns(world, proc):
        return end(world, proc)
    return go_on(done(world, proc.link, run_at(world, proc)), proc)


@act("stand")
def stand(world: World, proc: Proc) -> World:
    """Pending first, then on the source if it answers now."""
    link = proc.link
    if not owns(world, proc):
        return end(world, proc)
    world = put_run(world, link, run_at(world, proc), begun=True)
    world = put(world, link, debt=Debt(Owed.FENCE, proc.run))
    world = enter(world, link, source(link), {fence_of(link)}, AclPurpose.FENCE)
    return deny(world, proc, "stood", soft=True)


@act("stood")
def stood(world: World, proc: Proc) -> World:
    if not owns(world, proc):
        return end(world, proc)
    world = _seen_to_stand(world, proc)
    return go_on(done(world, proc.link, run_at(world, proc)), proc)


def _seen_to_stand(world: World, proc: Proc) -> World:
    """That the fence is there is recorded, with the log ends behind it."""
    link, src, debt = proc.link, source(proc.link), world.recs[proc.link].debt
    if debt is None or debt.paid or not world.up[src] or fence_of(link) not in ACLS.values(world.acls[src]):
        return world
    return put(world, link, debt=debt._replace(paid=True, end=world.extra[link // 2][src]))


@act("record_lmo")
def record_lmo(world: World, proc: Proc) -> World:
    link, rec, run = proc.link, world.recs[proc.link], run_at(world, proc)
    end_there = world.extra[link // 2][destination(link)]
    if not owns(world, proc) or (end_there and not rec.failed):
        return end(world, proc)
    if rec.state is not PartitionState.STOPPED:
        state = after(rec.state, Event.STOP, Event.LMO_RECORDED)
        world = put(world, link, desired=Desired.STOPPED, state=state, lmo=end_there)
    if run.mode is Mode.PLANNED:
        world = put(world, link, debt=Debt(Owed.FENCE, run.id, paid=True, end=0))
    # Of an unplanned one the groups' offsets are brought in before.
    world = put(world, link, desired=Desired.STOPPED)
    return go_on(done(world, link, run, steps=1 if step_of(run) == "record_lmo" else 2), proc)


@act("promote")
def promote(world: World, proc: Proc) -> World:
    """The last look, while an abort is possible; then the point of no return."""
    link, run = proc.link, run_at(world, proc)
    if not owns(world, proc) or (not run.begun and not _may_promote(world, proc, run)):
        return end(world, proc)
    stands, there = (debt := world.recs[link].debt) is not None and debt.paid, world.up[source(link)]
    if run.begun or not left_behind.word_needed(answers=there, stands=stands, silent=run.silent, held_up=False):
        return last_look(world, proc)
    return fence_again(put_run(world, link, run, word=bool(run.word)), proc, "last_look")


@act("last_look")
def last_look(world: World, proc: Proc) -> World:
    """What a source that is back has is left behind by a word only."""
    link, run = proc.link, run_at(world, proc)
    if not owns(world, proc) or (run.word is False and not run.begun and has_more(world, link)):
        return end(world, proc)
    return fence_again(put_run(world, link, run, begun=True), proc, "give")


def has_more(world: World, link: int) -> bool:
    """Whether the source is fenced, and has what was not copied."""
    rec = world.recs[link]
    if rec.debt is None or not rec.debt.paid:
        return False
    status = status_of(link, rec.state, rec.lmo, rec.failed)
    return any(reckoning.not_copied(debt_of(link, rec.debt), {status.partition: status}))


def _may_promote(world: World, proc: Proc, run: Run) -> bool:
    link, src = proc.link, source(proc.link)
    up = world.up[src] and run.mode is Mode.PLANNED
    if void(world, link, run, seen=up):
        return False
    if run.mode is Mode.UNPLANNED:
        return True
    file = world.files[link]
    known = file is not None and (file.run, file.kind) == (run.id, KIND)
    if known and file is not None and file.lifted:
        return False
    if not up:
        return known
    return fence_of(link) in ACLS.values(world.acls[src]) and not world.extra[link // 2][src]


def fence_again(world: World, proc: Proc, then: str) -> World:
    """From the promotion on each step sees to the fence: pending first, then on the source if it answers."""
    link, src, debt = proc.link, source(proc.link), world.recs[proc.link].debt
    file = world.files[link]
    lifted = file is not None and file.lifted and (file.run, file.kind) == (proc.run, KIND)
    if debt is None:
        return to(world, proc, then)
    gone = world.up[src] and fence_of(link) not in ACLS.values(world.acls[src])
    if debt.paid and not (lifted or gone):
        return to(world, proc, then)
    world = put(world, link, debt=debt._replace(paid=False, end=None) if debt.paid else debt)
    return deny(world, proc._replace(then=(then,)), "again", soft=True)


@act("again")
def again(world: World, proc: Proc) -> World:
    if not owns(world, proc):
        return end(world, proc)
    return to(_seen_to_stand(world, proc), proc, proc.then[-1], then=())


@act("give")
def give(world: World, proc: Proc) -> World:
    """Rights are entered as given. What somebody else has given already stays theirs."""
    link, dst = proc.link, destination(proc.link)
    if not owns(world, proc):
        return end(world, proc)
    state = state_on(world, dst)
    promoted = {e.acl for e in state.ledger.values() if e.purpose is AclPurpose.PROMOTED}
    ours = given(world, link) - (set(ACLS.values(world.acls[dst])) - promoted)
    world = enter(world, link, dst, ours, AclPurpose.PROMOTED)
    return to(world, proc, "give.create", mask=ACLS.mask(ours))


@act("give.create")
def give_create(world: World, proc: Proc) -> World:
    dst = destination(proc.link)
    if not world.up[dst]:
        return end(world, proc)
    return to(create(world, dst, proc.mask), proc, "give.confirm")


@act("give.confirm")
def give_confirm(world: World, proc: Proc) -> World:
    if owns(world, proc):
        return to(world, proc, "lift")
    return settled(world, proc, destination(proc.link), proc.mask)


@act("lift")
def lift(world: World, proc: Proc) -> World:
    """Denials of earlier demotions go, of this mirror and its way home, and of their topics only."""
    link, dst, run = proc.link, destination(proc.link), run_at(world, proc)
    if not owns(world, proc):
        return end(world, proc)
    state = state_on(world, dst)
    mine = tuple(demoted(state, link, dst))
    elsewhere = set[object]()
    if run.mode is Mode.PLANNED and world.up[source(link)]:
        elsewhere = {e.acl for e in demoted(state_on(world, source(link)), link, dst)}
    gone = ACLS.mask(a for a in ACLS.values(world.acls[dst]) if a in elsewhere - wanted(state, dst, mine))
    return to(delete(world, dst, gone | alone(world, link, mine)), proc, "lift.forget")


@act("lift.forget")
def lift_forget(world: World, proc: Proc) -> World:
    link, dst = proc.link, destination(proc.link)
    mine = tuple(demoted(state_on(world, dst), link, dst))
    if not owns(world, proc):
        return settled(world, proc, dst, ACLS.mask(e.acl for e in mine))
    return go_on(done(forget(world, link, mine), link, run_at(world, proc)), proc)


@act("switch")
def switch(world: World, proc: Proc) -> World:
    """Behind the promotion: the fence once more, then `close`."""
    if not owns(world, proc):
        return end(world, proc)
    return fence_again(put_run(world, proc.link, run_at(world, proc), begun=True), proc, "close")


@act("close")
def close_run(world: World, proc: Proc) -> World:
    """switch, canary and report."""
    if not owns(world, proc):
        return end(world, proc)
    run = run_at(world, proc)
    left = len(steps.names(run.kind, run.mode)) - run.done
    world = done(world, proc.link, run, steps=left)
    return end(close(world, proc.link, run_at(world, proc), RunState.DONE), proc)

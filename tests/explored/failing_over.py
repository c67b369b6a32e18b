"""A failover, planned and unplanned, from its begin to its promotion: one act after the other."""

from __future__ import annotations

from mirror_core.decide import approval_rules, steps
from mirror_core.model.acl import AclPurpose
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunKind, RunMode, RunState
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from tests.explored.deciding import (
    active,
    broken,
    plan_failover,
    synced,
    void,
)
from tests.explored.process import (
    act,
    answers,
    close,
    deny,
    done,
    end,
    enter,
    filed,
    owns,
    put,
    put_run,
    run_in,
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
    destination,
    fence_of,
    run_of,
    source,
    state_on,
)

KIND = RunKind.FAILOVER
ONE = {"settle": "settle", "final_offsets": "record_lmo"}
"""Steps that are one act with the next one, or have another name here."""


def begin(world: World, proc: Proc, mode: RunMode, *, silent: bool | None = None) -> World | None:
    """Look at both sides, make the plan, open the run. None: refused. `silent`: the source was, when somebody approved
    to give it up; None: that is now."""
    link, rec, there = proc.link, world.recs[proc.link], world.up[source(proc.link)]
    before, silent = active(rec), mode is RunMode.UNPLANNED and not there if silent is None else silent
    if not answers(world, link) or approval_rules.explain_source_answers_again(
        "", "", was_silent=silent, has_answered=there, has_answered_fully=there
    ):
        return None
    continues = (
        before is not None
        and before.kind is KIND
        and (before.mode, before.state, mode) == (RunMode.PLANNED, RunState.RUNNING, RunMode.UNPLANNED)
        and not steps.is_past_no_return(run_of(link, before), state_on(world, destination(link)).steps)
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
    world = filed(put_run(world, link, run_at(world, proc), begun=True), proc)
    world = put(world, link, debt=Debt(FenceAction.APPLY, proc.run))
    world = enter(world, link, source(link), {fence_of(link)}, AclPurpose.FENCE)
    return deny(world, proc, "stood", soft=True)


@act("stood")
def stood(world: World, proc: Proc) -> World:
    if not owns(world, proc):
        return end(world, proc)
    world = seen_to_stand(world, proc)
    return go_on(done(world, proc.link, run_at(world, proc)), proc)


def seen_to_stand(world: World, proc: Proc) -> World:
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
        state = apply_events(rec.state, PartitionEvent.STOP, PartitionEvent.LMO_RECORDED)
        world = put(world, link, desired=DesiredState.STOPPED, state=state, lmo=end_there)
    if run.mode is RunMode.PLANNED:
        world = put(world, link, debt=Debt(FenceAction.APPLY, run.id, paid=True, end=0))
    # Of an unplanned one the groups' offsets are brought in before.
    world = put(world, link, desired=DesiredState.STOPPED)
    return go_on(done(world, link, run, steps=1 if step_of(run) == "record_lmo" else 2), proc)

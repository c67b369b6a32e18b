"""A failover is given up, or gone on with."""

from __future__ import annotations

from mirror_core.decide import approval_rules, steps
from mirror_core.model.acl import AclPurpose
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunState
from mirror_core.runbook.failover_conductor import has_disturbed_applications
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from tests.explored import failing_over
from tests.explored.deciding import (
    entered,
    plan_failover,
)
from tests.explored.failing_over import run_at
from tests.explored.process import (
    act,
    alone,
    answers,
    close,
    delete,
    end,
    forget,
    owns,
    put,
    put_run,
    settled,
    take_over,
    to,
)
from tests.explored.world import (
    ACLS,
    CLUSTERS,
    NOW,
    Debt,
    Proc,
    Run,
    World,
    destination,
    run_of,
    source,
    state_on,
)


def abort(world: World, proc: Proc, run: Run) -> World | None:
    """Pending first: whatever happens from here on, the denials will be found. None: refused."""
    link = proc.link
    if not answers(world, link) or steps.is_past_no_return(run_of(link, run), state_on(world, destination(link)).steps):
        return None
    world = take_over(world, proc)
    if run.state is not RunState.ABORTING:
        world = put_run(world, link, run, state=RunState.ABORTING)
        world = put(world, link, debt=Debt(FenceAction.LIFT, run.id))
    return to(world, proc._replace(run=run.id), "unlift")


@act("unlift")
def unlift(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    if not owns(world, proc):
        return end(world, proc)
    mine = entered(world, link, src, AclPurpose.FENCE)
    if not mine:
        return to(put(world, link, debt=None), proc, "give_up")
    if not world.up[src]:
        return to(world, proc, "give_up")
    return to(delete(world, src, alone(world, link, mine)), proc, "unlift.forget")


@act("unlift.forget")
def unlift_forget(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    mine = entered(world, link, src, AclPurpose.FENCE)
    if not owns(world, proc):
        return settled(world, proc, src, ACLS.mask(e.acl for e in mine))
    return to(put(forget(world, link, mine), link, debt=None), proc, "give_up")


@act("give_up")
def give_up(world: World, proc: Proc) -> World:
    link, rec = proc.link, world.recs[proc.link]
    if not owns(world, proc):
        return end(world, proc)
    if rec.state in (PartitionState.STOPPED, PartitionState.STOPPING):
        state = apply_events(
            rec.state, PartitionEvent.ABORT, PartitionEvent.FAIL if rec.failed else PartitionEvent.ALIGNED
        )
        world = put(world, link, state=state, lmo=None)
    world = put(world, link, desired=DesiredState.STARTED)
    return end(close(world, link, run_at(world, proc), RunState.ABORTED), proc)


# -- who may go on ----------------------------------------------------------------------------------------------------


def disturbs(world: World, link: int, run: Run) -> bool:
    """Whether applications may have noticed it already."""
    return has_disturbed_applications(state_on(world, destination(link)), run_of(link, run), CLUSTERS[source(link)])


def asked_again(world: World, link: int, run: Run) -> bool | None:
    """Whether a person says yes again before the run goes on; None: the plan may not be run any more."""
    if not approval_rules.explain_stale_run_approval(run_of(link, run), NOW) or run.state is not RunState.RUNNING:
        return False
    if disturbs(world, link, run):
        return False
    return True if plan_failover(world, link, run.mode, anew=True)[1] else None


def leave_behind(world: World, proc: Proc, run: Run) -> World | None:
    """`failover resume --leave-behind`, for a run that has asked for it."""
    if run.word is not False or run.begun:
        return None
    run = run._replace(word=True)
    return resume(put_run(world, proc.link, run), proc, run)


def resume(world: World, proc: Proc, run: Run) -> World | None:
    """`failover resume`."""
    if not answers(world, proc.link):
        return None
    said = asked_again(world, proc.link, run)
    if said is None:
        return None
    if run.state is RunState.ABORTING:
        return abort(world, proc, run)
    now = take_over(world, proc)
    return failing_over.go_on(now, proc._replace(run=run.id, agreed=said))

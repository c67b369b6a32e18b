"""Whoever looks after a source that was failed away from: one look, and the acts that follow from it; and unfencing."""

from __future__ import annotations

from mirror_core.decide import fence_state, steps
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.decide.fence_state import FenceDecision, FenceNextAction, FenceObservation, FenceState
from mirror_core.decide.mirror_snapshot import UnseenCluster
from mirror_core.evidence.fence_file import FenceFile
from mirror_core.mirrors import fence_manual_commands, old_source_fence
from mirror_core.model.acl import AclPurpose
from mirror_core.model.config_sections import WriteBarrier
from mirror_core.model.errors import Refused
from mirror_core.model.pending_fence import FenceAction
from tests.explored.deciding import active, entered, held_home, link_of, refused
from tests.explored.process import act, alone, answers, delete, end, forget, owns, put, settled, take_over, to
from tests.explored.world import (
    ACLS,
    CLUSTERS,
    NOW,
    Proc,
    World,
    debt_of,
    destination,
    fence_of,
    name_of,
    offset,
    partition_of,
    run_id,
    run_of,
    source,
    state_on,
    topic_of,
)


def _shown(world: World, link: int) -> FenceObservation | UnseenCluster:
    src, debt = source(link), world.recs[link].debt
    if not world.up[src]:
        return UnseenCluster("silent")
    if debt is not None and debt.owed is FenceAction.LIFT:
        return FenceObservation(barred=WriteBarrier.DENY_ACLS)
    bare = () if fence_of(link) in ACLS.values(world.acls[src]) else ("a broker",)
    return FenceObservation(
        barred=WriteBarrier.DENY_ACLS,
        unfenced_brokers=bare,
        log_ends={partition_of(link): offset(world.extra[link // 2][src])},
    )


def _judged(world: World, link: int) -> FenceDecision:
    debt = world.recs[link].debt
    return fence_state.decide_fence(debt_of(link, debt) if debt else None, None, _shown(world, link))


def look(world: World, proc: Proc) -> World | None:
    """One look. None: there is nothing to be done, or it is not this one's to do."""
    link, rec = proc.link, world.recs[proc.link]
    if not answers(world, link) or rec.desired is None or rec.debt is None:
        return None
    run, debt = active(rec), debt_of(link, rec.debt)
    if run is not None:
        state, record = state_on(world, destination(link)), run_of(link, run)
        past = steps.is_past_no_return(record, state.steps)
        if not fence_state.must_fence_during_run(debt, record, is_past_no_return=past):
            return None
        return _beside(world, proc)
    found = _judged(world, link)
    if found.action is FenceNextAction.NOTHING and not found.is_silent:
        return None
    if refused(world, link, MirrorCommand.WATCH):
        return None
    if held_home(world, link):
        taken_away = found.action is FenceNextAction.APPLY and found.state is FenceState.APPLIED
        return _beside(world, proc) if taken_away else None
    # A silent cluster is waited for with the mirror's state in hand.
    return to(take_over(world, proc), proc, "carry_out")


def _beside(world: World, proc: Proc) -> World | None:
    """What is missing of the fence is put up without the mirror's state in hand."""
    link = proc.link
    wanted = old_source_fence.list_recorded_denials(link_of(link), state_on(world, destination(link)))
    missing = ACLS.mask(wanted - ACLS.values(world.acls[source(link)]))
    return to(world, proc, "beside", mask=missing) if missing and world.up[source(link)] else None


@act("beside")
def raise_beside(world: World, proc: Proc) -> World:
    """Beside a run, whose mirror this is: nothing is written to the state."""
    src = source(proc.link)
    if not world.up[src]:
        return end(world, proc)
    acls = list(world.acls)
    acls[src] |= proc.mask
    return to(world._replace(acls=(acls[0], acls[1])), proc, "beside.settle")


@act("beside.settle")
def settle_beside(world: World, proc: Proc) -> World:
    """What was just created may not be wanted any more."""
    src = source(proc.link)
    if not (world.up[src] and answers(world, proc.link)):
        return end(world, proc)
    wanted = ACLS.mask(old_source_fence._list_wanted(link_of(proc.link), state_on(world, destination(proc.link))))
    return end(delete(world, src, proc.mask & ~wanted), proc)


@act("carry_out")
def carry_out(world: World, proc: Proc) -> World | None:
    """What is seen of the cluster now counts. None: it is silent, and waited for."""
    link, src = proc.link, source(proc.link)
    if not owns(world, proc):
        return end(world, proc)
    if not world.up[src]:
        return None
    debt = world.recs[link].debt
    found = _judged(world, link)
    if debt is not None and debt.owed is FenceAction.LIFT:
        return to(world, proc, "pay_unfence")
    if found.action is FenceNextAction.APPLY:
        return to(world, proc, "enter", then=("paid",))
    if found.pending_fence is not None and debt is not None:
        return end(put(world, link, debt=debt._replace(end=world.extra[link // 2][src])), proc)
    return end(world, proc)


@act("paid")
def paid(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    debt = world.recs[link].debt
    if not (owns(world, proc) and world.up[src]) or debt is None:
        return end(world, proc)
    ends = debt.end if debt.end is not None else world.extra[link // 2][src]
    return end(put(world, link, debt=debt._replace(paid=True, end=ends)), proc)


@act("pay_unfence")
def pay_unfence(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    if not (owns(world, proc) and world.up[src]):
        return end(world, proc)
    mine = entered(world, link, src, AclPurpose.FENCE)
    return to(world, proc, "pay_unfence.delete", mask=alone(world, link, mine))


@act("pay_unfence.delete")
def unfence(world: World, proc: Proc) -> World:
    src = source(proc.link)
    if not world.up[src]:
        return end(world, proc)
    return to(delete(world, src, proc.mask), proc, "pay_unfence.forget")


@act("pay_unfence.forget")
def unfenced(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    mine = entered(world, link, src, AclPurpose.FENCE)
    if not owns(world, proc):
        return settled(world, proc, src, proc.mask)
    return end(put(forget(world, link, mine), link, debt=None), proc)


# -- lifting a fence by its file --------------------------------------------------------------------------------------


def must_stand(world: World, link: int) -> bool:
    """Whether the destination, if it answers, knows that this file's fence must stand."""
    file = world.files[link]
    if file is None or not answers(world, link):
        return False
    fence = FenceFile(
        run=run_id(link, file.kind, file.run),
        mirror=name_of(link),
        cluster=CLUSTERS[source(link)],
        cluster_id="",
        destination=CLUSTERS[destination(link)],
        written_ms=NOW,
        topics=(topic_of(link),) if file.named else (),
    )
    try:
        fence_manual_commands.check_may_lift(state_on(world, destination(link)), fence)
    except Refused:
        return True
    return False


def unfence_by_file(world: World, proc: Proc) -> World | None:
    """`cluster unfence`: whoever conducts the run loses it, if the destination answers."""
    link, src, file = proc.link, source(proc.link), world.files[proc.link]
    if file is None or not file.named or not world.up[src] or must_stand(world, link):
        return None
    mask = ACLS.mask([fence_of(link)])
    if not world.acls[src] & mask:
        return None
    if answers(world, link):
        world = take_over(world, proc)
    files = list(world.files)
    files[link] = file._replace(lifted=True)
    return to(world._replace(files=tuple(files)), proc, "unfence", mask=mask)


@act("unfence")
def lift_by_file(world: World, proc: Proc) -> World:
    src = source(proc.link)
    return end(delete(world, src, proc.mask) if world.up[src] else world, proc)

"""The promotion of a failover, and what comes behind it: one act after the other."""

from __future__ import annotations

from mirror_core.decide import forecast_accuracy, source_probe, steps
from mirror_core.model.acl import AclPurpose
from mirror_core.model.run import RunMode, RunState
from tests.explored.deciding import (
    demoted,
    given,
    void,
    wanted,
)
from tests.explored.failing_over import KIND, go_on, run_at, seen_to_stand
from tests.explored.process import (
    act,
    alone,
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
    settled,
    to,
)
from tests.explored.world import (
    ACLS,
    CLUSTERS,
    Proc,
    Run,
    World,
    debt_of,
    destination,
    fence_of,
    name_of,
    offset,
    partition_of,
    source,
    state_on,
    status_of,
)


@act("promote")
def promote(world: World, proc: Proc) -> World:
    """The last look, while an abort is possible; then the point of no return."""
    link, run = proc.link, run_at(world, proc)
    if not owns(world, proc) or (not run.begun and not _may_promote(world, proc, run)):
        return end(world, proc)
    stands, there = (debt := world.recs[link].debt) is not None and debt.paid, world.up[source(link)]
    if run.begun or not source_probe.needs_confirmation(
        has_answered=there, fence_held=stands, was_silent=run.silent, was_stalled=False
    ):
        return look_last(world, proc)
    return fence_again(put_run(world, link, run, word=bool(run.word)), proc, "last_look")


@act("last_look")
def look_last(world: World, proc: Proc) -> World:
    """What a source that is back has is left behind by a word only."""
    link, run = proc.link, run_at(world, proc)
    if not owns(world, proc):
        return end(world, proc)
    if not run.begun and unasked(world, link, run):
        return end(put_run(world, link, run, word=False), proc)
    return fence_again(put_run(world, link, run, begun=True), proc, "asked")


@act("asked")
def asked(world: World, proc: Proc) -> World:
    """So is one whose fence is up only now, as long as nothing is given."""
    link, run = proc.link, run_at(world, proc)
    if not owns(world, proc):
        return end(world, proc)
    if not run.given and unasked(world, link, run):
        return end(put_run(world, link, run, begun=False, word=False), proc)
    return to(world, proc, "give")


def unasked(world: World, link: int, run: Run) -> bool:
    """Whether a word is needed that nobody has given."""
    needed = source_probe.needs_confirmation(
        has_answered=True, fence_held=False, was_silent=run.silent, was_stalled=False
    )
    return needed and not run.word and has_more(world, link)


def has_more(world: World, link: int) -> bool:
    """Whether the source is fenced, and has what was not copied."""
    rec = world.recs[link]
    if rec.debt is None or not rec.debt.paid:
        return False
    status = status_of(link, rec.state, rec.lmo, rec.failed)
    return any(forecast_accuracy.find_not_copied(debt_of(link, rec.debt), {status.partition: status}))


def _may_promote(world: World, proc: Proc, run: Run) -> bool:
    link, src = proc.link, source(proc.link)
    up = world.up[src] and run.mode is RunMode.PLANNED
    if void(world, link, run, seen=up):
        return False
    if run.mode is RunMode.UNPLANNED:
        return True
    file = world.files[link]
    known = file is not None and (file.run, file.kind) == (run.id, KIND)
    if known and file is not None and file.lifted:
        return False
    said = _said(world, link)
    if any(source_probe.find_contradictions(said, CLUSTERS[src], {partition_of(link): offset(0)})):
        return False
    return not source_probe.explain_doubt(said, CLUSTERS[src], name_of(link), fence_held=True, has_fence_file=known)


def _said(world: World, link: int) -> source_probe.SourceReply:
    """The source, at the last look."""
    src = source(link)
    if not world.up[src]:
        return source_probe.SourceReply(silent_because="no answer")
    bare = () if fence_of(link) in ACLS.values(world.acls[src]) else ("a broker",)
    return source_probe.SourceReply(
        unfenced_brokers=bare, log_ends={partition_of(link): offset(world.extra[link // 2][src])}
    )


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
    return to(seen_to_stand(world, proc), proc, proc.then[-1], then=())


@act("give")
def give(world: World, proc: Proc) -> World:
    """Rights are entered as given. What somebody else has given already stays theirs."""
    link, dst = proc.link, destination(proc.link)
    if not owns(world, proc):
        return end(world, proc)
    state = state_on(world, dst)
    promoted = {e.acl for e in state.ledger.values() if e.purpose is AclPurpose.PROMOTED}
    ours = given(world, link) - (set(ACLS.values(world.acls[dst])) - promoted)
    world = put_run(world, link, run_at(world, proc), given=True)
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
    if run.mode is RunMode.PLANNED and world.up[source(link)]:
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
    left = len(steps.list_step_names(run.kind, run.mode)) - run.done
    world = done(world, proc.link, run, steps=left)
    return end(close(world, proc.link, run_at(world, proc), RunState.DONE), proc)

"""A failback, up to the failover of the way home and after it: one act after the other."""

from __future__ import annotations

from mirror_core.decide import approval_rules, failback_plan, steps
from mirror_core.decide.steps import StepNeed, list_steps_needing
from mirror_core.model.run import FailbackStrategy, RunKind, RunMode, RunState
from mirror_core.runbook.failback_steps import find_reverse_failover
from tests.explored.deciding_back import plan_failback, tails_of
from tests.explored.process import (
    act,
    answers,
    close,
    deny,
    done,
    end,
    owns,
    put,
    put_run,
    run_in,
    step_of,
    take_over,
    to,
)
from tests.explored.world import (
    NOW,
    PLANS,
    Proc,
    Run,
    World,
    destination,
    run_id,
    run_of,
    source,
    state_on,
    topic_of,
)

KIND = RunKind.FAILBACK


def begin(world: World, proc: Proc) -> World | None:
    """None: refused."""
    link, rec = proc.link, world.recs[proc.link]
    if not answers(world, link):
        return None
    plan, may_be_run = plan_failback(world, link)
    if not may_be_run:
        return None
    number = 1 + max((r.id for r in rec.runs), default=0)
    run = Run(number, KIND, RunMode.PLANNED, RunState.RUNNING, plan, True, proc.by)
    return go_on(take_over(put_run(world, link, run), proc), proc._replace(run=number))


def resume(world: World, proc: Proc, run: Run) -> World | None:
    link = proc.link
    if not answers(world, link) or run.state is not RunState.RUNNING:
        return None
    real = run_of(link, run)
    again = approval_rules.explain_stale_run_approval(real, NOW) and not steps.is_past_no_return(
        real, state_on(world, destination(link)).steps
    )
    return go_on(take_over(world, proc), proc._replace(run=run.id, agreed=bool(again)))


def abort(world: World, proc: Proc, run: Run) -> World | None:
    link = proc.link
    if not answers(world, link) or steps.is_past_no_return(run_of(link, run), state_on(world, destination(link)).steps):
        return None
    return end(close(take_over(world, proc), link, run, RunState.ABORTED), proc)


def home(world: World, link: int, run: Run) -> Run | None:
    """The failover that has brought applications home; None also while nobody can tell."""
    if not world.up[source(link)]:
        return None
    found = find_reverse_failover(state_on(world, source(link)), run_id(link, KIND, run.id))
    if found is None:
        return None
    return next(r for r in world.recs[link + 1].runs if run_of(link + 1, r) is found)


def go_on(world: World, proc: Proc) -> World:
    run = run_in(world.recs[proc.link], proc.run, KIND)
    step = step_of(run)
    if step is None or (
        step in list_steps_needing(KIND, StepNeed.REVERSE_FAILOVER) and home(world, proc.link, run) is None
    ):
        return end(world, proc)
    return to(world, proc, step, then=())


def run_at(world: World, proc: Proc) -> Run:
    return run_in(world.recs[proc.link], proc.run, KIND)


def ready(world: World, proc: Proc) -> bool:
    return all(world.up) and owns(world, proc)


@act("salvage")
def salvage(world: World, proc: Proc) -> World:
    if not ready(world, proc):
        return end(world, proc)
    return deny(put_run(world, proc.link, run_at(world, proc), begun=True), proc, "salvaged")


@act("salvaged")
def salvaged(world: World, proc: Proc) -> World:
    link, src, run = proc.link, source(proc.link), run_at(world, proc)
    if not ready(world, proc):
        return end(world, proc)
    debt, extra = world.recs[link].debt, world.extra[link // 2][src]
    if debt is not None and not debt.paid:
        world = put(world, link, debt=debt._replace(paid=True, end=extra))
    now = failback_plan.build_tails_fact(tails_of(world, link))
    if now not in PLANS[run.plan].bound_facts:
        return end(world, proc)
    return go_on(done(world, link, run, salvaged=extra), proc)


@act("align")
def align(world: World, proc: Proc) -> World:
    link, run = proc.link, run_at(world, proc)
    if not ready(world, proc):
        return end(world, proc)
    kept = PLANS[run.plan].strategies.get(topic_of(link)) is FailbackStrategy.NONE
    if not run.begun and kept and world.extra[link // 2][source(link)] > run.salvaged:
        return end(world, proc)
    return deny(put_run(world, link, run, begun=True), proc, "aligned")


@act("aligned")
def aligned(world: World, proc: Proc) -> World:
    """What only the old source has is gone."""
    link, src = proc.link, source(proc.link)
    if not ready(world, proc):
        return end(world, proc)
    extra, topic = list(world.extra), list(world.extra[link // 2])
    topic[src] = 0
    extra[link // 2] = (topic[0], topic[1])
    return go_on(done(world._replace(extra=tuple(extra)), link, run_at(world, proc)), proc)

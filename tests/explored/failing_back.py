"""A failback, up to the failover of the way home and after it: one act after the other."""

from __future__ import annotations

from mirror_core.decide import failback, steps
from mirror_core.decide.steps import Need, needing
from mirror_core.model.acl import AclPurpose, LedgerEntry
from mirror_core.model.mirror import Desired, PartitionState
from mirror_core.model.run import Mode, RunKind, RunState, Strategy
from mirror_core.runbook.failback_steps import home_run
from mirror_core.state.records import State
from mirror_core.state.table import Event, after
from mirror_core.sync import ledger, lifting
from tests.explored.deciding import demotions, entered, link_of, plan_failback, replaced, synced, tails_of
from tests.explored.failing_over import copied
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
    CLUSTERS,
    LEDGER,
    PLANS,
    Proc,
    Rec,
    Run,
    World,
    destination,
    fence_of,
    name_of,
    offset,
    partition_of,
    run_id,
    run_of,
    source,
    state_on,
    status_of,
    topic_of,
)

KIND = RunKind.FAILBACK


class Log:
    """A state topic for the product's own functions: what they write is read off afterwards."""

    def __init__(self, state: State) -> None:
        self.state = state.copy()

    def put(self, *records: object) -> None:
        for record in records:
            self.state.put(record)  # type: ignore[arg-type]  # records of the product's own

    def refresh(self) -> State:
        return self.state


def begin(world: World, proc: Proc) -> World | None:
    """None: refused."""
    link, rec = proc.link, world.recs[proc.link]
    if not answers(world, link):
        return None
    plan, may_be_run = plan_failback(world, link)
    if not may_be_run:
        return None
    number = 1 + max((r.id for r in rec.runs), default=0)
    run = Run(number, KIND, Mode.PLANNED, RunState.RUNNING, plan, True, proc.by)
    return go_on(take_over(put_run(world, link, run), proc), proc._replace(run=number))


def resume(world: World, proc: Proc, run: Run) -> World | None:
    if not answers(world, proc.link) or run.state is not RunState.RUNNING:
        return None
    return go_on(take_over(world, proc), proc._replace(run=run.id))


def abort(world: World, proc: Proc, run: Run) -> World | None:
    link = proc.link
    if not answers(world, link) or steps.turned(run_of(link, run), state_on(world, destination(link)).steps):
        return None
    return end(close(take_over(world, proc), link, run, RunState.ABORTED), proc)


def home(world: World, link: int, run: Run) -> Run | None:
    """The failover that has brought applications home; None also while nobody can tell."""
    if not world.up[source(link)]:
        return None
    found = home_run(state_on(world, source(link)), run_id(link, KIND, run.id))
    if found is None:
        return None
    return next(r for r in world.recs[link + 1].runs if run_of(link + 1, r) is found)


def go_on(world: World, proc: Proc) -> World:
    run = run_in(world.recs[proc.link], proc.run, KIND)
    step = step_of(run)
    if step is None or (step in needing(KIND, Need.HOME) and home(world, proc.link, run) is None):
        return end(world, proc)
    return to(world, proc, step, then=())


def _run(world: World, proc: Proc) -> Run:
    return run_in(world.recs[proc.link], proc.run, KIND)


def _ready(world: World, proc: Proc) -> bool:
    return all(world.up) and owns(world, proc)


@act("salvage")
def salvage(world: World, proc: Proc) -> World:
    if not _ready(world, proc):
        return end(world, proc)
    return deny(put_run(world, proc.link, _run(world, proc), begun=True), proc, "salvaged")


@act("salvaged")
def salvaged(world: World, proc: Proc) -> World:
    link, src, run = proc.link, source(proc.link), _run(world, proc)
    if not _ready(world, proc):
        return end(world, proc)
    debt, extra = world.recs[link].debt, world.extra[link // 2][src]
    if debt is not None and not debt.paid:
        world = put(world, link, debt=debt._replace(paid=True, end=extra))
    now = failback.tails_fact(tails_of(world, link))
    if now not in PLANS[run.plan].bound:
        return end(world, proc)
    return go_on(done(world, link, run, salvaged=extra), proc)


@act("align")
def align(world: World, proc: Proc) -> World:
    link, run = proc.link, _run(world, proc)
    if not _ready(world, proc):
        return end(world, proc)
    kept = PLANS[run.plan].strategies.get(topic_of(link)) is Strategy.NONE
    if not run.begun and kept and world.extra[link // 2][source(link)] > run.salvaged:
        return end(world, proc)
    return deny(put_run(world, link, run, begun=True), proc, "aligned")


@act("aligned")
def aligned(world: World, proc: Proc) -> World:
    """What only the old source has is gone."""
    link, src = proc.link, source(proc.link)
    if not _ready(world, proc):
        return end(world, proc)
    extra, topic = list(world.extra), list(world.extra[link // 2])
    topic[src] = 0
    extra[link // 2] = (topic[0], topic[1])
    return go_on(done(world._replace(extra=tuple(extra)), link, _run(world, proc)), proc)


# -- applications are kept from a cluster that is to be a mirror's destination: denials first, then no fence -----------


@act("demote")
def demote(world: World, proc: Proc) -> World:
    if not _ready(world, proc):
        return end(world, proc)
    world = put_run(world, proc.link, _run(world, proc), begun=True)
    return _demote(world, proc, proc.link, source(proc.link), "demote")


def _demote(world: World, proc: Proc, link: int, cluster: int, name: str) -> World:
    wanted = demotions(world, link, cluster)
    known = {e.acl for e in entered(world, link, cluster, AclPurpose.DEMOTED)}
    ours = wanted - ((wanted & ACLS.values(world.acls[cluster])) - known)
    world = enter(world, link, cluster, ours, AclPurpose.DEMOTED)
    return to(world, proc, f"{name}.create", mask=ACLS.mask(ours))


def _parts(name: str, at: int, then: str) -> None:
    """The acts of a demotion by the records of the failback's link, or of the one after it."""

    @act(f"{name}.create")
    def created(world: World, proc: Proc) -> World:
        cluster = source(proc.link + at)
        if not all(world.up):
            return end(world, proc)
        return to(create(world, cluster, proc.mask), proc, f"{name}.confirm")

    @act(f"{name}.confirm")
    def confirmed(world: World, proc: Proc) -> World:
        if not owns(world, proc, proc.link + at):
            return settled(world, proc._replace(link=proc.link + at), source(proc.link + at), proc.mask)
        return to(put(world, proc.link + at, debt=None), proc, f"{name}.unfence")

    @act(f"{name}.unfence")
    def unfenced(world: World, proc: Proc) -> World:
        link, cluster = proc.link + at, source(proc.link + at)
        if not all(world.up):
            return end(world, proc)
        mine = entered(world, link, cluster, AclPurpose.FENCE)
        return to(delete(world, cluster, alone(world, link, mine)), proc, f"{name}.forget")

    @act(f"{name}.forget")
    def forgotten(world: World, proc: Proc) -> World:
        link, cluster = proc.link + at, source(proc.link + at)
        mine = entered(world, link, cluster, AclPurpose.FENCE)
        if not owns(world, proc, link):
            return settled(world, proc._replace(link=link), cluster, ACLS.mask(e.acl for e in mine))
        world = forget(world, link, mine)
        return to(world, proc, then) if then else go_on(done(world, proc.link, _run(world, proc)), proc)


_parts("demote", 0, "")
_parts("reprotect", 1, "reprotect.stage")


# -- the way home -----------------------------------------------------------------------------------------------------


@act("create_reverse")
def create_reverse(world: World, proc: Proc) -> World:
    """The way home is recorded on the old source, with what is there already."""
    link, back = proc.link, proc.link + 1
    if not _ready(world, proc):
        return end(world, proc)
    world = put_run(world, link, _run(world, proc), begun=True)
    world = take_over(world, proc, back)
    if world.recs[back].desired is None or world.recs[back].homecoming != proc.run:
        began = after(PartitionState.UNKNOWN, Event.START, Event.ALIGNED)
        news = {"desired": Desired.STARTED, "state": began, "lmo": None, "failed": False, "homecoming": proc.run}
        world = put(world, back, **news)
    world = _remembered(world, back)
    return _stage(world, proc, back, "create_reverse.put")


def _stage(world: World, proc: Proc, link: int, then: str) -> World:
    """What promotion gave on this cluster goes, until the next one."""
    cluster = destination(link)
    mine = entered(world, link, cluster, AclPurpose.PROMOTED)
    return to(delete(world, cluster, alone(world, link, mine)), proc, then)


def _again(world: World, link: int) -> World:
    """Rights of a mirror that begins anew: staged ones, demotions that the other direction made, withdrawn ones."""
    cluster = destination(link)
    mine = entered(world, link, cluster, AclPurpose.PROMOTED)
    staged = tuple(LedgerEntry(mirror=e.mirror, cluster=e.cluster, acl=e.acl, purpose=AclPurpose.STAGED) for e in mine)
    mask = alone(world, link, mine)
    world = put(world, link, ledger=LEDGER.mask(replaced(LEDGER.values(world.recs[link].ledger), staged)))
    world = delete(world, cluster, mask)
    return _remembered(world, link)


def _remembered(world: World, link: int) -> World:
    """Who was demoted on its destination by the mirror of the other direction."""
    cluster, other = destination(link), link ^ 1
    log, theirs = Log(state_on(world, cluster)), state_on(world, destination(other))
    ledger.remember_there_too(log, name_of(link), theirs, CLUSTERS[cluster], [topic_of(link)])
    return put(world, link, ledger=_ledger(log, link))


def _ledger(log: Log, link: int) -> int:
    return LEDGER.mask(log.state.ledger_of(name_of(link)))


def _lifted(world: World, link: int) -> World:
    """Demotions on the mirror's source that the other direction's promotion has lifted."""
    log, theirs = Log(state_on(world, destination(link))), state_on(world, source(link))
    lifting.forget_lifted(link_of(link), log, theirs)
    return put(world, link, ledger=_ledger(log, link))


@act("create_reverse.put")
def reverse_made(world: World, proc: Proc) -> World:
    link, back = proc.link, proc.link + 1
    if not (_ready(world, proc) and owns(world, proc, back)):
        return end(world, proc)
    world = _lifted(_again(world, back), back)
    world = put(world, back, ledger=synced(world, back))
    return go_on(done(world, link, _run(world, proc)), proc)


@act("catch_up")
def catch_up(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    if not _ready(world, proc):
        return end(world, proc)
    if home(world, link, _run(world, proc)) is None:
        if world.extra[link // 2][src] or fence_of(link) in ACLS.values(world.acls[src]):
            return end(world, proc)
        world = copied(world, link)
    return go_on(done(world, link, _run(world, proc)), proc)


@act("reprotect")
def reprotect(world: World, proc: Proc) -> World:
    """Applications are home: the new primary is to be the mirror's destination again."""
    link, back, dst = proc.link, proc.link + 1, destination(proc.link)
    if not _ready(world, proc):
        return end(world, proc)
    found = home(world, link, _run(world, proc))
    if found is None:
        return end(world, proc)
    world = take_over(put_run(world, link, _run(world, proc), begun=True), proc, back)
    if found.mode is Mode.PLANNED and _written(world, back):
        return end(world, proc)
    return _demote(world, proc, back, dst, "reprotect")


def _written(world: World, back: int) -> bool:
    rec: Rec = world.recs[back]
    came_home = {partition_of(back): status_of(back, rec.state, rec.lmo, rec.failed)}
    ends = {partition_of(back): offset(world.extra[back // 2][source(back)])}
    return bool(failback.written_since(came_home, ends))


@act("reprotect.stage")
def reprotect_stage(world: World, proc: Proc) -> World:
    if not _ready(world, proc):
        return end(world, proc)
    return _stage(world, proc, proc.link, "reprotect.put")


@act("reprotect.put")
def protected(world: World, proc: Proc) -> World:
    link, back = proc.link, proc.link + 1
    if not (_ready(world, proc) and owns(world, proc, back)):
        return end(world, proc)
    found = home(world, link, _run(world, proc))
    failed = found is not None and found.mode is Mode.UNPLANNED and _written(world, back)
    state = after(PartitionState.STOPPED, Event.START, Event.FAIL if failed else Event.ALIGNED)
    world = _lifted(_again(world, link), link)
    world = put(world, link, desired=Desired.STARTED, state=state, lmo=None, failed=failed)
    if not failed:
        world = put(world, link, ledger=synced(world, link))
    world = done(world, link, _run(world, proc))
    return end(close(world, link, _run(world, proc), RunState.DONE), proc)

"""A failback once logs are aligned: applications are kept out, the way home is made, and what it leaves protected."""

from __future__ import annotations

from mirror_core.decide import acl_plan, failback_plan
from mirror_core.model.acl import LIFTABLE_PURPOSES, AclPurpose, LedgerEntry
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.run import RunMode, RunState
from mirror_core.rights import ledger_rules
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from mirror_core.state.state_records import State
from mirror_core.sync import acl_ledger, promotion_acls
from tests.explored.deciding import active, demotions, entered, link_of, replaced, synced
from tests.explored.failing_back import go_on, home, ready, run_at
from tests.explored.failing_over import copied
from tests.explored.process import (
    act,
    alone,
    close,
    create,
    delete,
    done,
    end,
    enter,
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
    LEDGER,
    Proc,
    Rec,
    World,
    destination,
    fence_of,
    name_of,
    offset,
    partition_of,
    source,
    state_on,
    status_of,
    topic_of,
)


class Log:
    """A state topic for the product's own functions: what they write is read off afterwards."""

    def __init__(self, state: State) -> None:
        self.state = state.copy()

    def put(self, *records: object) -> None:
        for record in records:
            self.state.put(record)  # type: ignore[arg-type]  # records of the product's own

    def now_ms(self) -> int:
        return 0

    def refresh(self) -> State:
        return self.state


# -- applications are kept from a cluster that is to be a mirror's destination: denials first, then no fence -----------


@act("demote")
def demote(world: World, proc: Proc) -> World:
    if not ready(world, proc):
        return end(world, proc)
    world = put_run(world, proc.link, run_at(world, proc), begun=True)
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
        return to(world, proc, then) if then else go_on(done(world, proc.link, run_at(world, proc)), proc)


_parts("demote", 0, "")
_parts("reprotect", 1, "reprotect.stage")


# -- the way home -----------------------------------------------------------------------------------------------------


@act("create_reverse")
def create_reverse(world: World, proc: Proc) -> World:
    """The way home is recorded on the old source, with what is there already."""
    link, back = proc.link, proc.link + 1
    if not ready(world, proc):
        return end(world, proc)
    world = put_run(world, link, run_at(world, proc), begun=True)
    if active(world.recs[back]) is not None:
        return end(world, proc)
    if home(world, link, run_at(world, proc)) is not None:
        return go_on(done(world, link, run_at(world, proc)), proc)
    world = take_over(world, proc, back)
    if world.recs[back].homecoming != proc.run:
        world = _unrevoked(world, back)
    if world.recs[back].desired is None or world.recs[back].homecoming != proc.run:
        began = apply_events(PartitionState.UNKNOWN, PartitionEvent.START, PartitionEvent.ALIGNED)
        news = {
            "desired": DesiredState.STARTED,
            "state": began,
            "lmo": None,
            "failed": False,
            "homecoming": proc.run,
            "begins": True,
        }
        world = put(world, back, **news)
    world = _noted(_remembered(world, back), back)
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
    acl_ledger.copy_demotions(log, name_of(link), theirs, CLUSTERS[cluster], [topic_of(link)])
    return _read_off(world, log, link)


def _noted(world: World, link: int) -> World:
    """Rights that went to the mirror's source by the other direction, and were withdrawn there since, or denied."""
    src, dst = source(link), destination(link)
    there = [e for e in LEDGER.values(world.recs[link ^ 1].ledger) if e.cluster == CLUSTERS[src]]
    given = {e.acl for e in there if e.purpose in acl_plan.STAGED_PURPOSES}
    theirs = set(ACLS.values(world.acls[src])) - {e.acl for e in there if e.purpose in LIFTABLE_PURPOSES}
    ledger = LEDGER.values(world.recs[link].ledger)
    ours = (e for e in ledger if e.cluster == CLUSTERS[dst])
    changes = tuple(ledger_rules.update_demotions(ours, theirs, given - theirs))
    return put(world, link, ledger=LEDGER.mask(replaced(ledger, changes))) if changes else world


def _unrevoked(world: World, link: int) -> World:
    """Without rights that its last promotion gave on its destination, and that were taken away there since."""
    cluster = destination(link)
    held = ACLS.values(world.acls[cluster])
    ledger = LEDGER.values(world.recs[link].ledger)
    given = (e for e in ledger if e.cluster == CLUSTERS[cluster] and e.purpose in acl_plan.STAGED_PURPOSES)
    gone = {e for e in given if e.purpose is AclPurpose.STAGED or e.acl not in held}
    return put(world, link, ledger=LEDGER.mask(ledger - gone)) if gone else world


def _read_off(world: World, log: Log, link: int) -> World:
    name = name_of(link)
    lifted = (one.entry for one in log.state.lifted_entries.values() if one.entry.mirror == name)
    return put(world, link, ledger=LEDGER.mask(log.state.ledger_entries(name)), lifted=LEDGER.mask(lifted))


def _lifted(world: World, link: int) -> World:
    """Demotions on the mirror's source that the other direction's promotion has lifted."""
    log, theirs = Log(state_on(world, destination(link))), state_on(world, source(link))
    promotion_acls.sync_lifted_records(link_of(link), log, theirs)
    return _read_off(world, log, link)


@act("create_reverse.put")
def reverse_made(world: World, proc: Proc) -> World:
    link, back = proc.link, proc.link + 1
    if not (ready(world, proc) and owns(world, proc, back)):
        return end(world, proc)
    world = _lifted(_again(world, back), back)
    world = put(_noted(put(world, back, ledger=synced(world, back)), back), back, begins=False)
    return go_on(done(world, link, run_at(world, proc)), proc)


@act("catch_up")
def catch_up(world: World, proc: Proc) -> World:
    link, src = proc.link, source(proc.link)
    if not ready(world, proc):
        return end(world, proc)
    if home(world, link, run_at(world, proc)) is None:
        if world.extra[link // 2][src] or fence_of(link) in ACLS.values(world.acls[src]):
            return end(world, proc)
        world = copied(world, link)
    return go_on(done(world, link, run_at(world, proc)), proc)


@act("reprotect")
def reprotect(world: World, proc: Proc) -> World:
    """Applications are home: the new primary is to be the mirror's destination again."""
    link, back, dst = proc.link, proc.link + 1, destination(proc.link)
    if not ready(world, proc):
        return end(world, proc)
    found = home(world, link, run_at(world, proc))
    if found is None:
        return end(world, proc)
    world = take_over(put_run(world, link, run_at(world, proc), begun=True), proc, back)
    if found.mode is RunMode.PLANNED and _written(world, back):
        return end(world, proc)
    return _demote(world, proc, back, dst, "reprotect")


def _written(world: World, back: int) -> bool:
    rec: Rec = world.recs[back]
    came_home = {partition_of(back): status_of(back, rec.state, rec.lmo, rec.failed)}
    ends = {partition_of(back): offset(world.extra[back // 2][source(back)])}
    return bool(failback_plan.find_written_since(came_home, ends))


@act("reprotect.stage")
def reprotect_stage(world: World, proc: Proc) -> World:
    if not ready(world, proc):
        return end(world, proc)
    return _stage(world, proc, proc.link, "reprotect.put")


@act("reprotect.put")
def protected(world: World, proc: Proc) -> World:
    link, back = proc.link, proc.link + 1
    if not (ready(world, proc) and owns(world, proc, back)):
        return end(world, proc)
    found = home(world, link, run_at(world, proc))
    failed = found is not None and found.mode is RunMode.UNPLANNED and _written(world, back)
    state = apply_events(
        PartitionState.STOPPED, PartitionEvent.START, PartitionEvent.FAIL if failed else PartitionEvent.ALIGNED
    )
    world = _lifted(_again(world, link), link)
    world = put(world, link, desired=DesiredState.STARTED, state=state, lmo=None, failed=failed)
    if not failed:
        world = _noted(put(world, link, ledger=synced(world, link)), link)
    world = done(world, link, run_at(world, proc))
    return end(close(world, link, run_at(world, proc), RunState.DONE), proc)

"""What can happen next: an act of a process, a command, a task of Airflow, the data plane, the clusters, the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mirror_core.decide.command_rules import MirrorCommand, explain_failback_hold
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.run import RunKind, RunMode
from mirror_core.state.partition_transitions import PartitionEvent, apply_events
from tests.explored import airflow, coming_home, failing_back, failing_over, giving_up, promoting, watching
from tests.explored.deciding import active, held_home, named, primary, refused, strayed, synced, writers
from tests.explored.limits import Limits, Move
from tests.explored.process import ACTS, answers, delete, end, put
from tests.explored.world import (
    ACLS,
    APP,
    CLUSTERS,
    LATE,
    Proc,
    World,
    destination,
    fence_of,
    grant,
    name_of,
    source,
    state_on,
)

PARTS: Final = (failing_over, promoting, giving_up, failing_back, coming_home, watching)
"""Each knows acts of processes."""


def moves(world: World, limits: Limits) -> Iterator[Move]:
    yield from _acts(world, limits)
    if len(world.procs) < limits.processes:
        slot = 1 + min({0, 1, 2} - {p.slot - 1 for p in world.procs})
        for link in range(len(world.recs)):
            yield from _commands(world, link, slot, limits)
        if limits.airflow:
            yield from airflow.tasks(world, slot)
    for link in range(len(world.recs)):
        yield from _data_plane(world, link)
    yield from _applications(world, limits)
    yield from _administrator(world)
    yield from _clusters(world, limits)
    if limits.hours:
        yield from _hour(world, limits)


def _acts(world: World, limits: Limits) -> Iterator[Move]:
    for proc in world.procs:
        label = f"{proc.by} {name_of(proc.link)} {proc.at}"
        after_it = ACTS[proc.at](world, proc)
        if after_it is not None:
            yield Move(label, after_it, True, proc.link)
        if limits.kills:
            yield Move(f"killed before: {label}", end(world, proc), False, proc.link)


def _commands(world: World, link: int, slot: int, limits: Limits) -> Iterator[Move]:
    rec, name = world.recs[link], name_of(link)
    if rec.desired is None or not answers(world, link):
        if limits.files:
            yield from _unfence(world, link, slot)
        return
    run = active(rec)

    def command(words: str, act: Callable[[World, Proc], World | None], **known: object) -> Iterator[Move]:
        proc = Proc(slot, "", link, **known)  # type: ignore[arg-type]  # fields of it
        found = act(world._replace(procs=(*world.procs, proc)), proc)
        if found is not None:
            yield Move(f"{words} {name}", found, True, link)

    for mode in RunMode if limits.unplanned else (RunMode.PLANNED,):
        begin = _beginning(mode)
        yield from command(f"failover run --mode {mode}", begin, agreed=True)
    if run is not None and run.kind is RunKind.FAILOVER:
        yield from command("failover resume", lambda w, p: giving_up.resume(w, p, run))
        yield from command("failover resume --leave-behind", lambda w, p: giving_up.leave_behind(w, p, run))
        yield from command("failover abort", lambda w, p: giving_up.abort(w, p, run))
    if link % 2 == 0 and limits.failbacks:
        yield from command("failback run", failing_back.begin, agreed=True)
        if run is not None and run.kind is RunKind.FAILBACK:
            yield from command("failback resume", lambda w, p: failing_back.resume(w, p, run))
            yield from command("failback abort", lambda w, p: failing_back.abort(w, p, run))
    yield from command("mirror watch", watching.look)
    if limits.files:
        yield from _unfence(world, link, slot)
    if limits.verbs:
        yield from _verbs(world, link)


def _beginning(mode: RunMode) -> Callable[[World, Proc], World | None]:
    return lambda world, proc: failing_over.begin(world, proc, mode)


def _unfence(world: World, link: int, slot: int) -> Iterator[Move]:
    proc = Proc(slot, "", link)
    found = watching.unfence_by_file(world._replace(procs=(*world.procs, proc)), proc)
    if found is not None:
        yield Move(f"cluster unfence {CLUSTERS[source(link)]} --from the file of {name_of(link)}", found, True, link)


def _verbs(world: World, link: int) -> Iterator[Move]:
    rec, name, dst = world.recs[link], name_of(link), destination(link)
    silent = not world.up[source(link)]
    runs = () if silent else state_on(world, source(link)).runs.values()
    home = any(explain_failback_hold(name, runs))
    if rec.state is not PartitionState.STOPPED and not refused(world, link, MirrorCommand.STOP) and not home:
        state = apply_events(rec.state, PartitionEvent.STOP, PartitionEvent.LMO_RECORDED)
        end_there = world.extra[link // 2][dst]
        yield Move(
            f"mirror stop {name}",
            put(world, link, desired=DesiredState.STOPPED, state=state, lmo=end_there, owner=0),
            True,
            link,
        )
    if (
        rec.desired is DesiredState.STOPPED
        and not refused(world, link, MirrorCommand.START)
        and not strayed(world, link)
    ):
        state = apply_events(
            rec.state, PartitionEvent.START, PartitionEvent.FAIL if rec.failed else PartitionEvent.ALIGNED
        )
        yield Move(
            f"mirror start {name}",
            put(world, link, desired=DesiredState.STARTED, state=state, lmo=None, owner=0),
            True,
            link,
        )
    if (
        rec.failed
        and rec.state is PartitionState.FAILED
        and not refused(world, link, MirrorCommand.RECOVER)
        and all(world.up)
    ):
        state = apply_events(rec.state, PartitionEvent.RECOVER, PartitionEvent.ALIGNED)
        yield Move(
            f"mirror recover {name}",
            failing_over.copied(put(world, link, state=state, failed=False, owner=0), link),
            True,
            link,
        )


# -- the rest of the world --------------------------------------------------------------------------------------------


def _data_plane(world: World, link: int) -> Iterator[Move]:
    """Copies, and syncs rights."""
    rec, src, dst = world.recs[link], source(link), destination(link)
    if rec.desired is not DesiredState.STARTED or rec.state is not PartitionState.MIRRORING or not all(world.up):
        return
    run, name, extra = active(rec), name_of(link), world.extra[link // 2]
    if run is not None and run.done >= 2:
        return
    if extra[dst]:
        state = apply_events(rec.state, PartitionEvent.FAIL)
        yield Move(f"data plane of {name}: foreign write", put(world, link, state=state, failed=True), True, link)
    elif extra[src] and not ACLS.mask([fence_of(link)]) & world.acls[dst]:
        yield Move(f"data plane of {name}: copies", failing_over.copied(world, link), True, link)
    if run is None:
        ledger = synced(world, link)
        if ledger != rec.ledger and not held_home(world, link):
            yield Move(f"sync of {name}", put(world, link, ledger=ledger, owner=0), True, link)


def _applications(world: World, limits: Limits) -> Iterator[Move]:
    """Also on a cluster that is silent to us only."""
    for topic, ends in enumerate(world.extra if limits.writes else ()):
        link = 2 * topic
        for cluster in (0, 1):
            if not ends[cluster] and writers(world, cluster, link, (APP,)):
                extra, now = list(world.extra), list(ends)
                now[cluster] = 1
                extra[topic] = (now[0], now[1])
                yield Move(f"an application writes on {CLUSTERS[cluster]}", world._replace(extra=tuple(extra)))
    if limits.revoked and world.late is None and all(world.up) and not (active(world.recs[0]) or active(world.recs[1])):
        cluster = primary(world, 0)
        if writers(world, cluster, 0, (LATE,)):
            after = delete(world, cluster, ACLS.mask([grant(0, LATE)]))
            yield Move(f"a right is withdrawn on {CLUSTERS[cluster]}", after._replace(late=cluster), False)


def _administrator(world: World) -> Iterator[Move]:
    """Removes what `mirror describe` names, as the on-call page says: where applications write, and while no run of any
    mirror is under way."""
    if any(active(rec) for rec in world.recs):
        return
    for link in range(len(world.recs)):
        cluster = primary(world, link // 2)
        if found := named(world, link, cluster):
            words = f"what describe {name_of(link)} names is removed on {CLUSTERS[cluster]}"
            yield Move(words, delete(world, cluster, ACLS.mask(found)))


def _clusters(world: World, limits: Limits) -> Iterator[Move]:
    for cluster in limits.outages:
        up = list(world.up)
        up[cluster] = not up[cluster]
        words = "answers again" if up[cluster] else "falls silent"
        yield Move(f"{CLUSTERS[cluster]} {words}", world._replace(up=(up[0], up[1])), up[cluster])


def _hour(world: World, limits: Limits) -> Iterator[Move]:
    """Nobody conducts meanwhile, but for who sleeps."""
    recs = []
    for link, rec in enumerate(world.recs):
        run = active(rec)
        if run is None or not run.fresh or any(p.link == link and p.run == run.id for p in world.procs):
            recs.append(rec)
            continue
        runs = tuple(r._replace(fresh=False) if r is run else r for r in rec.runs)
        recs.append(rec._replace(runs=runs))
    dag = world.dag
    if dag is not None and not any(p.by == "dag" for p in world.procs):
        dag = dag._replace(fresh=False, asked_fresh=False)
    now = world._replace(recs=tuple(recs), dag=dag)
    if now != world:
        yield Move("an hour passes", now, False)

"""What must hold of every world and of every move."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_core.decide import fence_state
from mirror_core.decide.steps import find_no_return_step, is_past_no_return, list_step_names
from mirror_core.model.acl import Acl, Permission
from mirror_core.model.mirror import DesiredState, PartitionState
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunKind, RunMode
from tests.explored import watching
from tests.explored.deciding import active, named, primary, remembered, writers
from tests.explored.limits import Move
from tests.explored.process import ACTS, delete, end
from tests.explored.promoting import has_more
from tests.explored.world import (
    ACLS,
    APP,
    CLUSTERS,
    EAST,
    LATE,
    WEST,
    Proc,
    Run,
    World,
    destination,
    fence_of,
    grant,
    name_of,
    run_of,
    source,
    state_on,
    topic_of,
)

WATCHER = 9


def wrong_world(world: World) -> Iterator[str]:
    yield from _two_primaries(world)
    yield from _unrecorded(world)


def wrong_move(before: World, move: Move) -> Iterator[str]:
    yield from _unapproved(before, move)
    yield from _others(before, move)
    yield from _withdrawn(before, move)
    yield from _unasked(before, move)


# -- two primaries, and none ------------------------------------------------------------------------------------------


def _open(world: World, topic: int) -> tuple[bool, bool]:
    found = [bool(writers(world, cluster, 2 * topic, (APP,))) for cluster in (EAST, WEST)]
    return found[0], found[1]


def _two_primaries(world: World) -> Iterator[str]:
    """Once whoever watches has had a turn. A silent cluster nobody can fence."""
    if not all(world.up):
        return
    for topic in range(len(world.extra)):
        open_to = _open(world, topic)
        if open_to[0] != open_to[1]:
            continue
        links = (2 * topic, 2 * topic + 1)
        if not any(open_to) and (
            world.procs
            or any(_moving(world, link) or _lifted_by_file(world, link) for link in links)
            or any(_open(_once_removed(world, topic), topic))
        ):
            continue
        if _open(watched(world), topic) == open_to:
            yield f"applications may write {topic_of(2 * topic)} " + ("on both clusters" if open_to[0] else "nowhere")


def _once_removed(world: World, topic: int) -> World:
    """After an administrator has removed, where applications write, what `mirror describe` names there."""
    cluster = primary(world, topic)
    found = frozenset[Acl]().union(*(named(world, link, cluster) for link in (2 * topic, 2 * topic + 1)))
    return delete(world, cluster, ACLS.mask(found))


def _lifted_by_file(world: World, link: int) -> bool:
    src = source(link)
    left = fence_of(link) in ACLS.values(world.acls[src]) - remembered(world, src)
    return left and _lifts(world, link, src)


def _moving(world: World, link: int) -> bool:
    run = active(world.recs[link])
    return run is not None and run.kind is RunKind.FAILOVER


def watched(world: World) -> World:
    """After all watchers that there are have had their turn, and those who sleep have not."""
    for proc in world.procs:
        world = end(world, proc)
    for _ in range(2):
        for link in range(len(world.recs)):
            state = state_on(world, destination(link))
            if (
                fence_state.explain_nothing_to_watch(
                    state.mirrors.get(name_of(link)), state.pending_fences.get(name_of(link))
                )
                is None
            ):
                world = _look(world, link)
    return world


def _look(world: World, link: int) -> World:
    proc = Proc(WATCHER, "", link)
    found = watching.look(world._replace(procs=(proc,)), proc)
    while found is not None and found.procs:
        world, found = found, ACTS[found.procs[0].at](found, found.procs[0])
    return world._replace(procs=()) if found is None else found


# -- denials ----------------------------------------------------------------------------------------------------------


def _unrecorded(world: World) -> Iterator[str]:
    """A denial that nobody remembers or names, once those who are at work have ended; and a fence that nobody could
    lift if the destination stayed away."""
    for cluster in (EAST, WEST):
        denials = {a for a in ACLS.values(world.acls[cluster]) if a.permission is Permission.DENY}
        if denials and not world.procs:
            told = frozenset[Acl]().union(*(named(world, link, cluster) for link in range(len(world.recs))))
            for acl in sorted(denials - remembered(world, cluster) - told):
                if not any(
                    _lifts_now_or_later(world, link, cluster) and acl == fence_of(link)
                    for link in range(len(world.recs))
                ):
                    yield f"nobody remembers {acl} on {CLUSTERS[cluster]}"
    for link in range(len(world.recs)):
        src = source(link)
        if not (world.up[src] and not world.up[destination(link)] and _keeps_out_for_nothing(world, link)):
            continue
        if fence_of(link) in ACLS.values(world.acls[src]) and not _lifts(world, link, src):
            yield f"{CLUSTERS[destination(link)]} is silent, and no command lifts the fence on {CLUSTERS[src]}"


def _keeps_out_for_nothing(world: World, link: int) -> bool:
    """Whether applications wait behind the fence for a failover that has not come so far, or was given up."""
    run, debt = active(world.recs[link]), world.recs[link].debt
    if run is None:
        return debt is not None and debt.owed is FenceAction.LIFT
    return run.kind is RunKind.FAILOVER and not _turned(world, link, run)


def _turned(world: World, link: int, run: Run) -> bool:
    return is_past_no_return(run_of(link, run), state_on(world, destination(link)).steps)


def _lifts_now_or_later(world: World, link: int, cluster: int) -> bool:
    """As soon as the run that holds the mirror has been given up."""
    run, file = active(world.recs[link]), world.files[link]
    held = run is not None and file is not None and file.named and source(link) == cluster
    return _lifts(world, link, cluster) or (held and run is not None and not _turned(world, link, run))


def _lifts(world: World, link: int, cluster: int) -> bool:
    """Whether there is a file by which this mirror's fence on a cluster can be lifted."""
    file = world.files[link]
    return file is not None and file.named and source(link) == cluster and not watching.must_stand(world, link)


# -- moves ------------------------------------------------------------------------------------------------------------


def _unapproved(before: World, move: Move) -> Iterator[str]:
    """Nothing that cannot be undone, and no fence, without an approval for that run that is not too old."""
    if move.by is None:
        return
    for run in move.world.recs[move.by].runs:
        was = next((r for r in before.recs[move.by].runs if (r.id, r.kind) == (run.id, run.kind)), None)
        if was is None and not run.fresh:
            yield f"{run.kind} {run.id} is begun on an old approval"
        at = (
            list_step_names(run.kind, run.mode)[run.done] if run.done < len(list_step_names(run.kind, run.mode)) else ""
        )
        if was is None or was.begun or was.done != run.done or not run.begun:
            continue
        if at not in (find_no_return_step(run.kind, run.mode), "fence") or _fenced_already(run, at):
            continue
        procs = [p for p in before.procs if p.link == move.by and p.run == run.id]
        dag = before.dag
        agreed = any(p.agreed for p in procs) or (
            dag is not None and any(p.by == "dag" for p in procs) and dag.asked_of == run.id and dag.asked_fresh
        )
        if not (run.fresh or agreed):
            yield f"step {at} of {run.kind} {run.id} begins on an old approval"


def _unasked(before: World, move: Move) -> Iterator[str]:
    """Nobody who agreed to give up a silent source has agreed to give up what one has that answers."""
    if move.by is None or not before.up[source(move.by)] or not move.world.up[source(move.by)]:
        return
    for run in move.world.recs[move.by].runs:
        was = next((r for r in before.recs[move.by].runs if (r.id, r.kind) == (run.id, run.kind)), None)
        if was is None and run.silent:
            yield f"{run.kind} {run.id} gives up {CLUSTERS[source(move.by)]}, which answers, by an approval of before"
        gives = was is not None and run.given and not was.given
        if gives and run.silent and not run.word and has_more(before, move.by):
            yield f"{run.kind} {run.id} leaves behind what {CLUSTERS[source(move.by)]} has, and nobody was asked"


def _fenced_already(run: Run, at: str) -> bool:
    """Applications stand still: nobody is asked again whether they may go on."""
    return at == "promote" and run.mode is RunMode.PLANNED


def _others(before: World, move: Move) -> Iterator[str]:
    """No mirror's act changes rights to another one's topics."""
    if move.by is None or before.acls == move.world.acls:
        return
    mine = topic_of(move.by)
    for cluster in (EAST, WEST):
        changed = ACLS.values(before.acls[cluster] ^ move.world.acls[cluster])
        if others := sorted(a for a in changed if a.name != mine):
            yield f"{name_of(move.by)} changed {others[0]} on {CLUSTERS[cluster]}"


def _withdrawn(before: World, move: Move) -> Iterator[str]:
    """What was withdrawn where applications are is not given where a planned failover moves them. One without the
    source goes by the last sync; who has a right by that on the new primary has it at home, too."""
    if move.world.late is None or move.by not in (0, 1) or before.acls == move.world.acls:
        return
    run, src, dst = active(move.world.recs[move.by]), source(move.by), destination(move.by)
    if run is None or run.mode is not RunMode.PLANNED or run.kind is not RunKind.FAILOVER or move.world.late != src:
        return
    given = writers(move.world, dst, 0, (LATE,)) and not writers(before, dst, 0, (LATE,))
    if given and grant(0, LATE) not in ACLS.values(before.acls[src]):
        yield f"{LATE} may write on {CLUSTERS[dst]}, and nobody grants it"


# -- where every way leads --------------------------------------------------------------------------------------------


def protected(world: World) -> bool:
    """Mirrored in one direction, with one side that applications may write, and nothing under way."""
    for topic in range(len(world.extra)):
        there, home = world.recs[2 * topic], world.recs[2 * topic + 1]
        mirroring = [r.desired is DesiredState.STARTED and r.state is PartitionState.MIRRORING for r in (there, home)]
        if not any(mirroring) or active(there) or active(home):
            return False
        if _open(world, topic) != (mirroring[0], mirroring[1] and not mirroring[0]):
            return False
    return all(world.up)

"""A failover in Airflow, one DAG run at a time: its tasks are retried, and cleared."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_core.decide import approval_rules, steps
from mirror_core.model.run import Approval, RunKind, RunMode, RunState
from tests.explored import failing_over, giving_up
from tests.explored.limits import Move
from tests.explored.process import answers, put, put_run, step_of
from tests.explored.world import NOW, OLD, Dag, Proc, Run, World, destination, name_of, run_of, source, state_on


def tasks(world: World, slot: int) -> Iterator[Move]:
    if world.dag is None:
        yield from _approve(world, slot)
        return
    yield Move("Airflow: another DAG run", world._replace(dag=None))
    if any(p.by == "dag" for p in world.procs) or not answers(world, world.dag.link):
        return
    state = state_on(world, destination(world.dag.link))
    mirror, runs = name_of(world.dag.link), state.runs.values()
    mine = approval_rules.list_runs_begun_by(runs, mirror, RunKind.FAILOVER, "dag")
    standing = [run.id for run in mine if approval_rules.is_in_effect(run, runs, state.pending_fences.get(mirror))]
    own = approval_rules.find_run_to_resume(mine, "", standing)
    if own is None:
        yield from _begin(world, world.dag, slot)
        return
    run = next(r for r in world.recs[world.dag.link].runs if run_of(world.dag.link, r) is own)
    if run.state is RunState.RUNNING:
        yield from _go_on(world, world.dag, run, slot)


def _started(world: World, link: int, slot: int) -> tuple[World, Proc]:
    proc = Proc(slot, "", link, by="dag")
    return world._replace(procs=(*world.procs, proc)), proc


def _approve(world: World, slot: int) -> Iterator[Move]:
    for link in range(len(world.recs)):
        for mode in RunMode:
            there, proc = _started(world, link, slot)
            if world.recs[link].desired is not None and failing_over.begin(there, proc, mode) is not None:
                silent = mode is RunMode.UNPLANNED and not world.up[source(link)]
                words = f"Airflow: {mode} failover of {name_of(link)} is approved"
                yield Move(words, world._replace(dag=Dag(link, mode, True, silent=silent)))


def _approval(fresh: bool) -> Approval:
    return Approval(id="a", name="a person", at_ms=NOW if fresh else OLD)


def _begin(world: World, dag: Dag, slot: int) -> Iterator[Move]:
    said = [_approval(dag.fresh)]
    runs = (r for r in world.recs[dag.link].runs if r.kind is RunKind.FAILOVER)
    before = [run_of(dag.link, r) for r in runs if r.id == dag.run]
    if approval_rules.explain_stale_approvals(said, NOW) or approval_rules.explain_used_approvals(before, said):
        return
    begun = failing_over.begin(*_started(world, dag.link, slot), dag.mode, silent=dag.silent)
    if begun is not None:
        run = max(begun.recs[dag.link].runs, key=lambda one: one.id)
        begun = put_run(begun, dag.link, run, fresh=dag.fresh)
        yield Move("Airflow: begin", begun._replace(dag=dag._replace(run=run.id)), True, dag.link)


def _go_on(world: World, dag: Dag, run: Run, slot: int) -> Iterator[Move]:
    link, pausing = dag.link, step_of(run) == "fence"
    there, proc = _started(world, link, slot)
    said = [_approval(True)] if dag.asked_of == run.id and dag.asked_fresh else []
    late = approval_rules.explain_expired_run(run_of(link, run), said, (), NOW) and not giving_up.disturbs(
        world, link, run
    )
    stops = run.mode is RunMode.UNPLANNED or pausing
    if not (stops and late) and (not pausing or dag.asked_of == run.id):
        taken = put(there._replace(dag=dag._replace(run=run.id)), link, owner=slot)
        yield Move("Airflow: tasks are cleared", failing_over.go_on(taken, proc._replace(run=run.id)), True, link)
    if pausing:
        asked = dag._replace(asked_of=run.id, asked_fresh=True, run=run.id)
        yield Move("Airflow: go ahead", world._replace(dag=asked))
    turning = steps.list_step_names(run.kind, run.mode).index(steps.find_no_return_step(run.kind, run.mode))
    given_up = giving_up.abort(there, proc, run) if run.id == dag.run and run.done <= turning else None
    if given_up is not None and world.up[source(link)]:
        yield Move("Airflow: abort", given_up, True, link)
